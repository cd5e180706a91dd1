"""Pieces of the logits against all logits at once.

Tolerances, relative to the largest entry: float64 1e-12 and float32 5e-6, for sums of some hundred products in another
order; half precision by relative norm, 1e-2, which is some roundings of 2^-9.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.linear_ce import linear_cross_entropy, negative_log_likelihoods, op, triton
from paper_repro.tests.support.ops import ON_A_GPU, apart, assert_same
from paper_repro.training.counting import peak_bytes

TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6}


def _inputs(
    shape: tuple[int, ...] = (3, 7), width: int = 12, words: int = 37, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    h = torch.randn(*shape, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(words, width, generator=generator, dtype=torch.float64)
    scale = torch.rand(words, generator=generator, dtype=torch.float64) + 0.5
    targets = torch.randint(words, shape, generator=generator)
    if targets.numel() > 1:
        targets.view(-1)[1] = -100
    return {"h": h.to(dtype), "weight": weight.to(dtype), "targets": targets, "scale": scale.to(dtype)}


def _found(inputs: dict[str, Any], **options: Any) -> dict[str, Tensor]:
    """The loss, the gradients of 3 times it, and each token's loss."""
    leaves = {
        name: value.detach().clone().requires_grad_()
        for name, value in inputs.items()
        if value is not None and value.is_floating_point()
    }
    arguments = {**inputs, **leaves}
    loss = linear_cross_entropy(**arguments, **options)
    gradients = torch.autograd.grad(3 * loss, list(leaves.values()))
    each = negative_log_likelihoods(**arguments, **options)
    assert not each.requires_grad
    return {"loss": loss.detach(), "each": each, **dict(zip(leaves, gradients, strict=True))}


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
    inputs: dict[str, Any] = _inputs(shape, width, words, dtype)
    inputs["scale"] = {"word by word": inputs["scale"], "by one number": inputs["scale"][:1], "not": None}[scaled]
    wide = {name: value if value is None or name == "targets" else value.double() for name, value in inputs.items()}
    expected = _found(wide, implementation="reference")
    found = _found(inputs, implementation=implementation)
    assert all(value.dtype == dtype for value in found.values())
    assert_same(found.values(), expected.values(), TOLERANCE[dtype])


@pytest.mark.parametrize("implementation", ["closed_form", "fused"])
def test_where_no_target_counts_the_result_is_that_of_pytorch(implementation: str) -> None:
    inputs = _inputs((4,)) | {"targets": torch.full((4,), -100)}
    found = _found(inputs, implementation=implementation)
    assert found.pop("loss").isnan()
    assert all(float(value.abs().max()) == 0 for value in found.values())


@pytest.mark.parametrize("implementation", ["closed_form", "fused"])
def test_large_logits_neither_overflow_nor_lose_the_target(implementation: str) -> None:
    inputs = _inputs(dtype=torch.float32)
    inputs["scale"] *= 2000
    found = _found(inputs, implementation=implementation)
    assert all(bool(value.isfinite().all()) for value in found.values())
    assert float(found["each"].max()) > 1e4
    assert_same(
        found.values(), _found(inputs, implementation="reference").values(), 1e-4
    )  # float32 logits of 1e4 are 1e-3 apart


@pytest.mark.parametrize("softmax", [op.softmax, triton.softmax])
@pytest.mark.parametrize("target", [40, -1, 1 << 40])
def test_a_target_beyond_the_vocabulary_reads_nothing_and_makes_its_loss_nan(softmax: op.Softmax, target: int) -> None:
    z = torch.randn(2, 64, dtype=torch.float64)
    expected = z[0, :37].softmax(-1)
    assert softmax(z[:, :37], torch.tensor([target, 3]), True).isnan().tolist() == [True, False]
    torch.testing.assert_close(z[0, :37], expected)


def test_the_logits_are_never_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "chunk_size", lambda *_: 16)
    inputs = _inputs((256,), 8, 500, torch.float32)
    leaves = {k: v.requires_grad_() if v.is_floating_point() else v for k, v in inputs.items()}
    pieces, whole = (
        peak_bytes(lambda way=way: linear_cross_entropy(**leaves, implementation=way).backward())
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
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**{**_inputs(), "implementation": "closed_form", **change})


@ON_A_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", ["closed_form", "fused"])
def test_on_a_gpu(dtype: torch.dtype, implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "chunk_size", lambda *_: 100)
    inputs = {key: value.cuda() for key, value in _inputs((1100,), 84, 9001).items()}
    inputs["weight"] *= 84**-0.5
    expected = _found(inputs, implementation="reference")
    cast = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    found = _found(cast, implementation=implementation)
    assert all(apart(value, expected[name]) < 1e-2 for name, value in found.items())
