"""The kernel (through Triton's interpreter) against the definition, and that against loops and autograd.

Tolerances relative to the largest entry: float64 1e-12, float32 2e-5: sums over a head, the width and up to 150 tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.tied_attention import descend, tied_attention
from paper_repro.models.common import Positions
from paper_repro.tests.support.ops import ON_A_GPU, assert_as_defined, assert_near
from paper_repro.training.counting import peak_bytes

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
pytestmark = pytest.mark.usefixtures("poisoned")


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


def _inputs(size: Size, dtype: torch.dtype = torch.float64) -> list[Any]:
    """x, keys, reading, writing, h d or None, norm weight or None, bias_self, bias_cross."""
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, dtype=torch.float64, generator=generator)).to(dtype)

    rows = (size.sequences, size.tokens)
    matrices = [drawn(size.heads * size.head, size.width, scale=size.width**-0.5) for _ in range(2)]
    keys, context = drawn(*rows, size.heads, size.head), drawn(*rows, size.width, scale=0.3)
    given = context if size.context else None, 1 + drawn(size.width, scale=0.2) if size.norm else None
    return [drawn(*rows, size.width), keys, *matrices, *given, drawn(1)[0], drawn(1)[0]]


def _positions(keys: Tensor, bias_self: Tensor, bias_cross: Tensor) -> Positions:
    slopes = torch.tensor([2.0 ** -(1 + head / 2) for head in range(keys.shape[2])])
    return Positions(slopes.to(keys), bias_self, bias_cross)


def _descent(size: Size) -> Callable[..., Tensor]:
    """The descent as a function of ``_inputs``."""

    def descended(*given: Any, implementation: str) -> Tensor:
        *tensors, bias_self, bias_cross = given
        numbers: dict[str, Any] = {"num_steps": size.steps, "step_size": 0.7, "tau": math.sqrt(size.head)}
        places = _positions(given[1], bias_self, bias_cross)
        return descend(*tensors, places, **numbers, implementation=implementation)

    return descended


def _attention(tau: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """The attention as a function of q, k, u and h d, or None and None, bias_self and bias_cross; lse is detached."""

    def attended(*given: Any, implementation: str) -> tuple[Tensor, Tensor]:
        *tensors, bias_self, bias_cross = given
        out, lse = tied_attention(*tensors, _positions(given[1], bias_self, bias_cross), tau, implementation)
        return out, lse.detach()

    return attended


def _for_attention(inputs: list[Any]) -> list[Any]:
    """Queries are the keys in reverse: of an odd number of tokens the middle one sees itself."""
    state, keys, _, _, context, _, *biases = inputs
    return [keys.flip(1), keys, None if context is None else state, context, *biases]


def test_without_a_diagonal_the_update_is_minus_the_gradient_of_the_energy() -> None:
    x, keys, reading, _, _, _, own, cross = _inputs(SMALL)
    u, positions = x.clone().requires_grad_(), _positions(keys, own, cross)
    query = functional.linear(u, reading).unflatten(-1, (2, 3))
    _, lse = tied_attention(query, keys, None, None, positions, 1.3, "reference")
    energy_gradient = torch.autograd.grad((-1.3 * lse).sum(), u)[0]
    for implementation in ("reference", "fused"):
        _, found = tied_attention(query, keys, None, None, positions, 1.3, implementation)
        torch.testing.assert_close(found, lse, rtol=1e-12, atol=1e-12)
        given = x, keys, reading, reading, None, None, positions
        moved = descend(*given, num_steps=1, tau=1.3, implementation=implementation)
        torch.testing.assert_close(moved - x, -energy_gradient, rtol=1e-12, atol=1e-12)


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
def test_descent_and_gradients_are_those_of_the_definition(size: Size, dtype: torch.dtype) -> None:
    # The gradients of queries that see one key are rounding alone.
    assert_as_defined(_descent(size), _inputs(size, dtype), "fused", TOLERANCE[dtype], least=1.0)


@ON_A_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "size", [Size(2, 300, 12, 64, 768), Size(3, 129, 8, 84, 672), Size(2, 700, 12, 72, 864, context=False)], ids=str
)
def test_on_a_gpu(size: Size, dtype: torch.dtype) -> None:
    inputs = [None if value is None else value.cuda() for value in _inputs(size, dtype)]
    assert_near(_attention(8), _for_attention(inputs), "fused", of_numbers=5e-2)
    assert_near(_descent(size), inputs, "fused", 2e-2, of_numbers=1e-1)


@pytest.mark.parametrize("context", [True, False])
def test_each_further_step_keeps_its_state_alone(context: bool) -> None:
    size = Size(2, 48, 4, 8, 32, context=context)
    given = [value if value is None else value.requires_grad_() for value in _inputs(size, torch.float32)]
    descended = [
        peak_bytes(lambda: _descent(replace(size, steps=count))(*given, implementation="fused").sum())  # noqa: B023
        for count in (2, 4)
    ]
    assert descended[1] - descended[0] == 2 * (2 * 48 * 32 * 4)
