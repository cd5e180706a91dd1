"""The kernel against the definition.

Tolerances, relative to the largest entry: float64 1e-12, float32 5e-6, for a few roundings and sums over some tokens;
half precision by relative norm, 1e-2, which is some roundings of 2^-9.
"""

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.scaled_swiglu import scaled_swiglu, triton
from paper_repro.tests.support.ops import ON_A_GPU, assert_as_defined, assert_near, outcome

TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6}
SCALES = {"both": ("M", "M"), "u": ("M", None), "nu": (None, "M"), "numbers": ("1", "1"), "neither": (None, None)}


def _inputs(
    shape: tuple[int, ...] = (3, 4), half: int = 5, scales: str = "both", dtype: torch.dtype = torch.float64
) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(9)
    pre = 3 * torch.randn(*shape, 2 * half, generator=generator, dtype=torch.float64)
    drawn = [torch.rand(half, generator=generator, dtype=torch.float64) + 0.5 for _ in range(2)]
    sizes = {"M": half, "1": 1}
    chosen = [None if size is None else scale[: sizes[size]] for scale, size in zip(drawn, SCALES[scales], strict=True)]
    return [None if value is None else value.to(dtype) for value in (pre, *chosen)]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("shape", "half"), [((), 1), ((1,), 56), ((3, 7), 84), ((5,), 1100)])
def test_values_and_gradients_are_those_of_the_definition(shape, half, dtype, scales, monkeypatch):
    monkeypatch.setattr(triton, "PROGRAMS", 4)  # several tokens a program
    assert_as_defined(scaled_swiglu, _inputs(shape, half, scales, dtype), "fused", TOLERANCE[dtype])


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_large_pre_activations_stay_finite(implementation: str) -> None:
    pre = torch.tensor([[1e4, -1e4, 1e4, -1e4, 1e4, 1e4, -1e4, -1e4]])
    out, gradient = outcome(scaled_swiglu, [pre, None, None], implementation=implementation)
    assert out.tolist() == [[1e8, -1e8, 0, 0]]
    assert bool(gradient.isfinite().all())


@ON_A_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("half", [84, 1100, 5120])
def test_on_a_gpu(dtype: torch.dtype, scales: str, half: int) -> None:
    pre, *factors = (None if value is None else value.float().cuda() for value in _inputs((1100,), half, scales))
    assert_near(scaled_swiglu, [None if pre is None else pre.to(dtype), *factors], "fused")
