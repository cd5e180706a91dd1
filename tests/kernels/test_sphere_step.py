"""The kernel (through Triton's interpreter) against the definition, and that against autograd.

Tolerances relative to the largest entry: float64 1e-12, float32 2e-5, sums of some thousand products in another order.
"""

from functools import partial

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.sphere_step import sphere_step, triton
from paper_repro.tests.support.ops import ON_A_GPU, assert_as_defined, assert_near

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


@pytest.fixture(autouse=True)
def few_programs(poisoned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's programs are few: each takes several tiles."""
    for name in ("WARPS_FORWARD", "WARPS_BACKWARD"):
        monkeypatch.setattr(triton, name, 8)


def _inputs(*shape: int, rates: int | None = None, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """h near the sphere, f of any length, alpha of both signs."""
    generator = torch.Generator().manual_seed(11)
    h, f = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    alpha = torch.linspace(-0.4, 0.9, rates or shape[-1], dtype=torch.float64)
    return [value.to(dtype) for value in (h * shape[-1] ** -0.5, 3 * f, alpha)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("shape", [(2,), (1, 7), (3, 5, 56), (1, 2, 2, 72), (84, 84), (150, 20), (3, 1280)])
def test_values_and_gradients_are_those_of_the_definition(shape, absolute, dtype):
    # The gradient of one alpha is a sum of terms that cancel: rounding goes with the terms, not with the sum.
    for rates, factor in ((None, 1), (1, 10)):
        inputs = _inputs(*shape, rates=rates, dtype=dtype)
        assert_as_defined(partial(sphere_step, absolute=absolute), inputs, "fused", factor * TOLERANCE[dtype])


@ON_A_GPU
@pytest.mark.parametrize("dtypes", [(torch.float32,) * 2, (torch.float32, torch.bfloat16), (torch.float16,) * 2])
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(1100, 84), (5000, 1024), (301, 1280), (40, 8192)])
def test_on_a_gpu(rows: int, width: int, absolute: bool, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    h, f, alpha = (value.cuda() for value in _inputs(rows, width))
    assert_near(partial(sphere_step, absolute=absolute), [h.to(dtypes[0]), f.to(dtypes[1]), alpha.float()], "fused")
