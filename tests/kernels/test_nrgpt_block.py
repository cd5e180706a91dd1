"""The closed form against the definition; tests/models/test_nrgpt.py compares it with autograd of the energy.

Tolerances: float64 1e-12, float32 2e-5, relative to the largest entry: sums of some thousand products, reordered.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels import nrgpt_block
from paper_repro.kernels.preferences import prefer
from paper_repro.models import nrgpt
from paper_repro.tests.support.ops import assert_as_defined
from paper_repro.training.counting import BYTES_PER_PARAMETER, num_parameters, peak_bytes

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


VARIANTS: dict[str, Callable[..., Tensor]] = {
    "one_layer": nrgpt_block.one_layer_gradient,
    "two_weight": nrgpt_block.two_weight_gradient,
}


def _inputs(
    variant: str, tokens: tuple[int, ...], width: int, hidden: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """g, W1, b1 and, for "two_weight", W2, b2; pre-activations up to about 6, where gelu is flat on one side."""
    generator = torch.Generator().manual_seed(4)
    shapes = [(*tokens, width), (hidden, width), (hidden,), (width, hidden), (width,)]
    scales = (2.0, width**-0.5, 1.0, hidden**-0.5, 1.0)
    drawn = [
        (torch.randn(shape, dtype=torch.float64, generator=generator) * scale).to(dtype)
        for shape, scale in zip(shapes, scales, strict=True)
    ]
    return drawn if variant == "two_weight" else drawn[:3]


@pytest.fixture(params=["as one", "by model", "in pieces"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(nrgpt_block, "SMALL", 1 << 40 if request.param == "as one" else 0)
    monkeypatch.setattr(nrgpt_block, "PIECE", 1 if request.param == "in pieces" else 1 << 40)
    monkeypatch.setattr(nrgpt_block, "LEAST_TOKENS", 4)
    return str(request.param)


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("tokens", "width", "hidden"), [((2, 9), 5, 7), ((11,), 4, 1), ((), 3, 5), ((3, 5), 1, 8)])
def test_derivatives_are_those_of_the_definition(tokens, width, hidden, variant, dtype):
    inputs = _inputs(variant, tokens, width, hidden, dtype)
    assert_as_defined(VARIANTS[variant], inputs, "closed_form", TOLERANCE[dtype])


def _peak(make: type[nrgpt.NRGPT], recompute: bool) -> int:
    with torch.device("meta"):
        model = make(65, 256, 512, 2, num_steps=6, dropout=0.1)
        ids = torch.zeros(64, 256, dtype=torch.long)
    with prefer(recompute=recompute):
        peak = peak_bytes(lambda: functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward())
    return peak + BYTES_PER_PARAMETER * num_parameters(model)


@pytest.mark.parametrize("make", [nrgpt.NRGPT_H_FF1, nrgpt.NRGPT_H_FF2W])
def test_a_shakespeare_step_of_width_512_stays_below_4_gb(make: type[nrgpt.NRGPT]) -> None:
    """On the meta device attention holds its scores and nothing is cut into pieces: the count is an upper bound."""
    recomputed = _peak(make, recompute=True)
    assert recomputed < 2e9  # half of the demand: the process itself and the allocator take their share
    assert _peak(make, recompute=False) > 2 * recomputed
