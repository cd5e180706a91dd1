"""One Adam step with unit rows: both ways against torch's AdamW and a projection.

Tolerances, relative to the largest entry: float64 1e-12; float32 2e-6, some ten roundings of 6e-8 each.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from paper_repro.kernels import unit_adam
from paper_repro.kernels.preferences import prefer
from paper_repro.tests.support.ops import assert_same

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}
NUMBERS = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SHAPES = [(1, 1), (3, 56), (130, 8), (2, 3, 72), (7, 33)]
VECTORS = [(1,), (37,), (5000,), (), (3, 5)]


def _drawn(shapes: list[tuple[int, ...]], dtype: torch.dtype, steps: int = 1) -> list[list[Tensor]]:
    """Parameters, then the gradients of each step."""
    generator = torch.Generator().manual_seed(5)
    return [
        [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
        for _ in range(1 + steps)
    ]


def _stepped(shapes: list[tuple[int, ...]], dtype: torch.dtype, unit: bool, steps: int, how: str) -> list[list[Tensor]]:
    parameters, *gradients = _drawn(shapes, dtype, steps)
    firsts, seconds = ([torch.zeros_like(parameter) for parameter in parameters] for _ in range(2))
    for number, gradient in enumerate(gradients, 1):
        before = [value.clone() for value in gradient]
        with prefer(how):
            unit_adam.adam_(parameters, gradient, firsts, seconds, number, **NUMBERS, unit_rows=unit)
        assert all(torch.equal(one, two) for one, two in zip(gradient, before, strict=True))
    return [parameters, firsts, seconds]


def _by_torch(shapes: list[tuple[int, ...]], dtype: torch.dtype, unit: bool, steps: int) -> list[list[Tensor]]:
    parameters, *gradients = _drawn(shapes, dtype, steps)
    optimizer = torch.optim.AdamW(parameters, **NUMBERS, foreach=False)
    for gradient in gradients:
        for parameter, value in zip(parameters, gradient, strict=True):
            parameter.grad = value
        optimizer.step()
        if unit:
            for parameter in parameters:
                parameter.div_(parameter.square().sum(-1, keepdim=True).sqrt())
    states = [optimizer.state[parameter] for parameter in parameters]
    return [parameters, *([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))]


@pytest.mark.parametrize("how", ["reference", "auto"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("unit", "shapes"), [(True, SHAPES), (False, VECTORS)])
@pytest.mark.parametrize("steps", [1, 10])
def test_steps_are_those_of_adamw_and_a_projection(
    unit: bool, shapes: list[tuple[int, ...]], dtype: torch.dtype, steps: int, how: str
) -> None:
    found = _stepped(shapes, dtype, unit, steps, how)
    expected = _by_torch(shapes, dtype, unit, steps)
    assert_same(itertools.chain(*found), itertools.chain(*expected), TOLERANCE[dtype] * math.sqrt(steps))
    if unit:
        norms = torch.cat([torch.linalg.vector_norm(rows.double(), dim=-1).flatten() for rows in found[0]])
        assert float((norms - 1).abs().max()) < 4 * torch.finfo(dtype).eps


def test_bfloat16_is_computed_in_float32_and_rounded_once_whatever_the_moments_are() -> None:
    for kept in (torch.bfloat16, torch.float32):
        (parameter,), (gradient,) = _drawn([(6, 40)], torch.bfloat16)
        moments = [[torch.zeros(6, 40, dtype=kept)] for _ in range(2)]
        wide, wide_moments = [parameter.float()], [[torch.zeros(6, 40)] for _ in range(2)]
        unit_adam.adam_([parameter], [gradient], *moments, 1, **NUMBERS, unit_rows=True)
        with prefer("reference"):
            unit_adam.adam_(wide, [gradient.float()], *wide_moments, 1, **NUMBERS, unit_rows=True)
        for (one,), (two,) in zip(([parameter], *moments), (wide, *wide_moments), strict=True):
            assert torch.equal(one, two.to(one.dtype))
