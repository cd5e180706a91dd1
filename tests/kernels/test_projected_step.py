"""The kernels (through Triton's interpreter) against the definition, and that against formulas and convolutions.

Tolerances relative to the largest entry: float64 1e-12, float32 1e-6: sums of a row, whose error grows with its root.
"""

from functools import partial

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.projected_step import image_step, projected_step
from paper_repro.tests.support.ops import assert_as_defined, assert_same

pytestmark = pytest.mark.usefixtures("poisoned")

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
WAYS = ("reference", "fused")


def _drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for shape in shapes]


def _image(
    images: int, side: int, reach: int, numbers: int, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], list[Tensor]]:
    """y, patches and bias; wanted and beta."""
    blocks = (images, side + reach - 1, side + reach - 1, numbers)
    y, patches, bias, wanted, beta = _drawn(
        blocks, (images, side**2, reach**2 * numbers), (numbers,), blocks, (images,), dtype=dtype
    )
    return [y, patches, bias], [wanted, 0.2 * beta]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("step_size", [0.1, 1.0])
@pytest.mark.parametrize("shape", [(2,), (4, 1), (2, 3, 7), (3, 64), (2, 768), (1, 1031)])
def test_tokens_of_the_kernel_are_those_of_the_definition(shape, step_size, dtype):
    # Two numbers with mean 0 and deviation 1 are 1 and -1: of one number nothing is left.
    step, inputs = partial(projected_step, step_size=step_size), _drawn(shape, shape, dtype=dtype)
    with torch.no_grad():
        assert_as_defined(step, inputs, "fused", TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("nudged", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 1, 1), (2, 1, 3, 5), (2, 4, 1, 3), (1, 3, 2, 300), (1, 4, 3, 7)])
def test_the_image_of_the_kernel_is_that_of_the_definition(size, nudged, dtype):
    def step(y: Tensor, patches: Tensor, bias: Tensor, *nudge: Tensor, **way: str) -> Tensor:
        return image_step(y, patches, bias, 0.3, *nudge, **way)

    inputs, nudge = _image(*size, dtype)
    with torch.no_grad():
        assert_as_defined(step, [*inputs, *(nudge if nudged else ())], "fused", TOLERANCE[dtype])


@pytest.mark.parametrize("implementation", WAYS)
def test_results_may_overwrite_the_state_and_inputs_may_lie_apart(implementation: str) -> None:
    z, target = _drawn((3, 4, 6), (3, 4, 6))
    expected = projected_step(z, target, 0.4, implementation="reference")
    strided = z.mT.contiguous().mT
    found = projected_step(strided, target, 0.4, out=strided, implementation=implementation)
    assert found is strided
    assert_same([found], [expected], 1e-12)
    found = projected_step(z, target, 0.4, out=z, implementation=implementation)
    assert found is z
    assert_same([found], [expected], 1e-12)

    (y, patches, bias), nudge = _image(2, 3, 2, 4)
    expected = image_step(y, patches, bias, 0.4, *nudge, implementation="reference")
    rows = torch.cat([patches, patches], -1)[..., 16:]
    found = image_step(y, rows, bias, 0.4, *nudge, out=y, implementation=implementation)
    assert found is y
    assert_same([found], [expected], 1e-12)
