"""Kernel (through Triton's interpreter) and closed form against the definition, and that against loops and autograd.

Tolerances relative to the largest entry: float64 1e-12, float32 2e-5: sums over a head, the width and up to 150 tokens.
"""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.tied_attention import descend, op, tied_attention
from paper_repro.tests.support.ops import ON_A_GPU, along, kept_bytes

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
FAST = ("fused", "closed_form")


@pytest.fixture(autouse=True)
def small_pieces(poisoned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed form works in small pieces."""
    monkeypatch.setattr(op, "ROWS", 5)
    monkeypatch.setattr(op, "PIECE", 400)


@dataclass(frozen=True)
class Size:
    """B sequences, T tokens, H heads of Y, D width; S steps; with h d, with an inner norm."""

    sequences: int
    tokens: int
    heads: int
    head: int
    width: int
    steps: int = 2
    context: bool = True
    norm: bool = True


SMALL = Size(2, 5, 2, 3, 6)


def _inputs(size: Size, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, keys, reading, writing, h d, norm weight, bias_self, bias_cross."""
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, dtype=torch.float64, generator=generator)).to(dtype)

    rows = (size.sequences, size.tokens)
    matrices = [drawn(size.heads * size.head, size.width, scale=size.width**-0.5) for _ in range(2)]
    keys, context = drawn(*rows, size.heads, size.head), drawn(*rows, size.width, scale=0.3)
    weight = 1 + drawn(size.width, scale=0.2)
    return [drawn(*rows, size.width), keys, *matrices, context, weight, drawn(1)[0], drawn(1)[0]]


def _slopes(keys: Tensor) -> Tensor:
    return torch.tensor([2.0 ** -(1 + head / 2) for head in range(keys.shape[2])]).to(keys)


def _descended(size: Size, inputs: list[Tensor], implementation: str, **options: Any) -> Tensor:
    x, keys, reading, writing, context, weight, bias_self, bias_cross = inputs
    places = {"slopes": _slopes(keys), "bias_self": bias_self, "bias_cross": bias_cross}
    given = {"num_steps": size.steps, "step_size": 0.7, "tau": math.sqrt(size.head), **places}
    context_and_weight = context if size.context else None, weight if size.norm else None
    options = given | {"implementation": implementation} | options
    return descend(x, keys, reading, writing, *context_and_weight, **options)


def _used(size: Size, leaves: list[Tensor]) -> list[Tensor]:
    return [leaf for index, leaf in enumerate(leaves) if (index != 4 or size.context) and (index != 5 or size.norm)]


def _outcome(size: Size, inputs: list[Tensor], implementation: str) -> list[Tensor]:
    """x_T and every gradient."""
    leaves = [value.clone().requires_grad_() for value in inputs]
    out = _descended(size, leaves, implementation)
    return [out.detach(), *torch.autograd.grad(out, _used(size, leaves), along(out))]


def _attended(
    inputs: list[Tensor], implementation: str, shared: bool = True, tau: float = 1.3
) -> tuple[list[Tensor], list[Tensor]]:
    """o and lse, and the gradients of o: of q, k, biases and, if shared, u and h d.

    Queries are the keys in reverse: of an odd number of tokens the middle one sees itself with a score of |k|^2 / tau.
    """
    leaves = [value.clone().requires_grad_() for value in inputs]
    state, keys, _, _, context, _, bias_self, bias_cross = leaves
    query = keys.detach().flip(1).requires_grad_()
    out, lse = tied_attention(
        query,
        keys,
        *((state, context) if shared else ()),
        tau=tau,
        slopes=_slopes(keys),
        bias_self=bias_self,
        bias_cross=bias_cross,
        implementation=implementation,
    )
    asked = [query, keys, bias_self, bias_cross, *([state, context] if shared else [])]
    return [out.detach(), lse.detach()], list(torch.autograd.grad(out, asked, along(out)))


def _assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float, least: float = 1e-12) -> None:
    """``least``: below it an entry is rounding alone, as the gradients of queries that see one key."""
    for one, two in zip(found, expected, strict=True):
        allowed = tolerance * max(float(two.detach().abs().max()), least / TOLERANCE[torch.float64])
        torch.testing.assert_close(one.double(), two.double(), rtol=0, atol=allowed)


@pytest.mark.parametrize("implementation", ["reference", *FAST])
def test_values_are_those_of_loops_over_tokens_and_heads(implementation: str) -> None:
    inputs = _inputs(SMALL)
    state, keys, _, _, context, _, own, cross = inputs
    query, slopes = keys.flip(1), _slopes(keys)
    (out, lse), _ = _attended(inputs, implementation)
    for b, i, k in ((b, i, k) for b in range(2) for i in range(5) for k in range(2)):
        scores = [
            (keys[b, j, k] @ query[b, i, k] + context[b, j] @ state[b, i]) / 1.3
            - slopes[k] * (i - j)
            + (own if i == j else cross)
            for j in range(i + 1)
        ]
        normaliser = torch.logsumexp(torch.stack(scores), 0)
        read = sum(torch.exp(score - normaliser) * keys[b, j, k] for j, score in enumerate(scores))
        torch.testing.assert_close(lse[b, i, k], normaliser, rtol=1e-13, atol=1e-13, check_dtype=False)
        torch.testing.assert_close(out[b, i, k], read, rtol=1e-13, atol=1e-13)


def test_without_a_diagonal_the_update_is_minus_the_gradient_of_the_energy() -> None:
    x, keys, reading, _, _, _, own, cross = _inputs(SMALL)
    u, options = (
        x.clone().requires_grad_(),
        {"slopes": _slopes(keys), "bias_self": own, "bias_cross": cross, "tau": 1.3},
    )
    query = functional.linear(u, reading).unflatten(-1, (2, 3))
    _, lse = tied_attention(query, keys, **options, implementation="reference")
    energy_gradient = torch.autograd.grad((-1.3 * lse).sum(), u)[0]
    for implementation in ("reference", *FAST):
        moved = descend(x, keys, reading, reading, num_steps=1, **options, implementation=implementation)
        torch.testing.assert_close(moved - x, -energy_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("implementation", FAST)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "size",
    [
        Size(2, 1, 3, 4, 12),
        Size(2, 7, 1, 84, 30, steps=3),
        Size(1, 19, 2, 40, 24),
        Size(1, 7, 3, 56, 30, norm=False),
        Size(1, 33, 2, 7, 14),
        Size(1, 7, 3, 72, 100, steps=1, context=False),
        Size(1, 17, 2, 16, 33, context=False, norm=False),
    ],
    ids=str,
)
def test_descent_and_gradients_are_those_of_the_definition(size: Size, dtype: torch.dtype, implementation: str) -> None:
    inputs = _inputs(size, dtype)
    expected = _outcome(size, [value.double() for value in inputs], "reference")
    found = _outcome(size, inputs, implementation)
    assert {value.dtype for value in found} == {dtype}
    _assert_same(found, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("implementation", ["reference", *FAST])
def test_no_token_hears_of_a_later_one(implementation: str) -> None:
    size = Size(1, 23, 2, 4, 6)
    inputs = _inputs(size)
    whole = _descended(size, inputs, implementation)
    changed = [value.clone() for value in inputs]
    for by_token in (changed[0], changed[1], changed[4]):
        by_token[:, 20:] += 3
    # Float64: what a kernel adds for a masked token is 0, but not in the same order everywhere.
    torch.testing.assert_close(_descended(size, changed, implementation)[:, :20], whole[:, :20], rtol=1e-12, atol=1e-12)
    leaves = [inputs[0], inputs[1].requires_grad_(), *inputs[2:]]
    gradient = torch.autograd.grad(_descended(size, leaves, implementation)[:, :20].sum(), leaves[1])[0]
    assert int(gradient[:, 20:].count_nonzero()) == 0 and int(gradient[:, 19].count_nonzero()) > 0


@ON_A_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "size", [Size(2, 300, 12, 64, 768), Size(3, 129, 8, 84, 672), Size(2, 700, 12, 72, 864, context=False)], ids=str
)
def test_on_a_gpu(size: Size, dtype: torch.dtype) -> None:
    inputs = [value.cuda() for value in _inputs(size, dtype)]
    values, gradients = _attended([value.double() for value in inputs], "reference", size.context, 8)
    found_values, found_gradients = _attended(inputs, "fused", size.context, 8)
    for one, two in zip([*found_values, *found_gradients], [*values, *gradients], strict=True):
        assert float((one.double() - two).norm() / two.norm()) < (1e-2 if one.ndim else 5e-2)
    found = _outcome(size, inputs, "fused")
    for one, two in zip(found, _outcome(size, [value.double() for value in inputs], "reference"), strict=True):
        assert float((one.double() - two).norm() / two.norm()) < (2e-2 if one.ndim else 1e-1)


B, J, D, K = 2, 48, 32, 4


def _given(shared: bool = True) -> list[Tensor | None]:
    """x, keys, reading, writing, h d, norm weight."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(B, J, D), (B, J, K, D // K), (D, D), (D, D), (B, J, D), (D,)]
    drawn = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    return [value if shared or index != 4 else None for index, value in enumerate(drawn)]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("implementation", ["fused", "closed_form"])
def test_each_further_step_keeps_a_state_and_its_normalisers(implementation: str, shared: bool) -> None:
    given, slopes = _given(shared), torch.full((K,), 0.5)
    options: dict[str, Any] = {"tau": 2.0, "slopes": slopes, "implementation": implementation}
    known = [value for value in (*given, slopes) if value is not None]
    kept = [kept_bytes(lambda: descend(*given, num_steps=count, **options), *known) for count in (1, 2, 3)]  # noqa: B023
    state, normalisers, scalars = B * J * D * 4, B * J * K * 4, 2 * 4  # of the two biases that were not given
    assert kept[0] <= normalisers + scalars
    assert kept[1] - kept[0] == kept[2] - kept[1] == state + normalisers
