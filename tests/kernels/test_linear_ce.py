"""Pieces of the logits against all logits at once.

Tolerances, relative to the largest entry: float64 1e-12 and float32 5e-6, for sums of some hundred products in another
order; half precision by relative norm, 1e-2, which is some roundings of 2^-9.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.linear_ce import linear_cross_entropy, negative_log_likelihoods, op, triton
from paper_repro.tests.support.ops import ON_A_GPU, assert_as_defined, assert_near, assert_same, outcome
from paper_repro.training.counting import peak_bytes

TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6}


def _inputs(
    shape: tuple[int, ...] = (3, 7), width: int = 12, words: int = 37, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], Tensor]:
    """h, weight and scale; targets, of which one does not count."""
    generator = torch.Generator().manual_seed(3)
    h = torch.randn(*shape, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(words, width, generator=generator, dtype=torch.float64)
    scale = torch.rand(words, generator=generator, dtype=torch.float64) + 0.5
    targets = torch.randint(words, shape, generator=generator)
    if targets.numel() > 1:
        targets.view(-1)[1] = -100
    return [h.to(dtype), weight.to(dtype), scale.to(dtype)], targets


def _losses(targets: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    """Three times the loss, and each token's loss, which has no gradient."""

    def losses(h: Tensor, weight: Tensor, scale: Tensor | None, **way: str) -> tuple[Tensor, Tensor]:
        given = h, weight, targets, scale
        return 3 * linear_cross_entropy(*given, **way), negative_log_likelihoods(*given, **way)

    return losses


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("implementation", ["closed_form", "fused"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("scaled", ["word by word", "by one number", "not"])
@pytest.mark.parametrize(("shape", "width", "words"), [((), 5, 3), ((1,), 1, 1), ((2, 9), 84, 300), ((11,), 56, 9001)])
def test_values_and_gradients_are_those_of_the_definition(
    shape: tuple[int, ...],
    width: int,
    words: int,
    scaled: str,
    dtype: torch.dtype,
    implementation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(op, "chunk_size", lambda *_: 10)
    monkeypatch.setattr(op, "PIECE", 1)  # blocks of the fewest rows
    (h, weight, scale), targets = _inputs(shape, width, words, dtype)
    given = {"word by word": scale, "by one number": scale[:1], "not": None}[scaled]
    assert_as_defined(_losses(targets), [h, weight, given], implementation, TOLERANCE[dtype])


@pytest.mark.parametrize("implementation", ["closed_form", "fused"])
def test_where_no_target_counts_the_result_is_that_of_pytorch(implementation: str) -> None:
    inputs, targets = _inputs((4,))
    loss, *others = outcome(_losses(torch.full_like(targets, -100)), inputs, implementation=implementation)
    assert loss.isnan()
    assert all(float(value.abs().max()) == 0 for value in others)


@pytest.mark.parametrize("implementation", ["closed_form", "fused"])
def test_large_logits_neither_overflow_nor_lose_the_target(implementation: str) -> None:
    (h, weight, scale), targets = _inputs(dtype=torch.float32)
    inputs, losses = [h, weight, 2000 * scale], _losses(targets)
    found = outcome(losses, inputs, implementation=implementation)
    assert float(found[1].max()) > 1e4  # where float32 logits are 1e-3 apart
    assert_same(found, outcome(losses, inputs, implementation="reference"), 1e-4)


@pytest.mark.parametrize("softmax", [op.softmax, triton.softmax])
@pytest.mark.parametrize("target", [40, -1, 1 << 40])
def test_a_target_beyond_the_vocabulary_reads_nothing_and_makes_its_loss_nan(softmax: op.Softmax, target: int) -> None:
    z = torch.randn(2, 64, dtype=torch.float64)
    expected = z[0, :37].softmax(-1)
    assert softmax(z[:, :37], torch.tensor([target, 3]), True).isnan().tolist() == [True, False]
    torch.testing.assert_close(z[0, :37], expected)


def test_the_logits_are_never_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "chunk_size", lambda *_: 16)
    inputs, targets = _inputs((256,), 8, 500, torch.float32)
    h, weight, scale = (value.requires_grad_() for value in inputs)
    pieces, whole = (
        peak_bytes(lambda way=way: linear_cross_entropy(h, weight, targets, scale, way).backward())
        for way in ("closed_form", "reference")
    )
    assert pieces < 4 * 256 * 500 / 2 < whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h": torch.zeros(3, 7, 11)}, r"got \(3, 7, 11\), \(37, 12\), \(3, 7\), \(37,\)"),
        ({"targets": torch.zeros(3, 7, dtype=torch.int32)}, "targets must be int64, got torch.int32"),
        ({"targets": torch.full((3, 7), 37)}, r"21 of 21 targets are neither in \[0, 37\) .* one of them 37"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    (h, weight, scale), targets = _inputs()
    given = {"h": h, "weight": weight, "targets": targets, "scale": scale, **change}
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**given, implementation="closed_form")


@ON_A_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", ["closed_form", "fused"])
def test_on_a_gpu(dtype: torch.dtype, implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "chunk_size", lambda *_: 100)
    (h, weight, scale), targets = _inputs((1100,), 84, 9001)
    inputs = [value.to(dtype).cuda() for value in (h, weight * 84**-0.5, scale)]
    assert_near(_losses(targets.cuda()), inputs, implementation)
