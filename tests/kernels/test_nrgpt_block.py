"""The closed form against autograd of the energy (values) and against the definition (gradients).

Tolerances: float64 1e-12, float32 2e-5, relative to the largest entry: sums of some thousand products, reordered.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels import nrgpt_block
from paper_repro.tests.support.ops import assert_same, kept_bytes, outcome

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


def one_layer_energy(g: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute FF1's energy -|gelu(W1 g + b1)|^2, (...,), of g (..., D), W1 (M, D)."""
    return -functional.gelu(functional.linear(g, weight, bias)).square().sum(-1)


def two_weight_energy(g: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    """Compute FF2W's energy -g . (W2 gelu(W1 g + b1) + b2), (...,), of g (..., D), W1 (M, D), W2 (D, M)."""
    hidden = functional.gelu(functional.linear(g, up, up_bias))
    return -(g * functional.linear(hidden, down, down_bias)).sum(-1)


VARIANTS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "one_layer": (nrgpt_block.one_layer_gradient, one_layer_energy),
    "two_weight": (nrgpt_block.two_weight_gradient, two_weight_energy),
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
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("implementation", ["closed_form", "reference"])
def test_the_gradient_is_that_of_the_energy(variant: str, implementation: str) -> None:
    function, energy = VARIANTS[variant]
    g, *weights = _inputs(variant, (2, 9), 5, 7)
    expected = torch.func.grad(lambda at: energy(at, *weights).sum())(g)
    assert_same([function(g, *weights, implementation=implementation)], [expected], 1e-12)


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("tokens", "width", "hidden"), [((2, 9), 5, 7), ((11,), 4, 1), ((), 3, 5), ((3, 5), 1, 8)])
def test_derivatives_are_those_of_the_definition(
    tokens: tuple[int, ...], width: int, hidden: int, variant: str, dtype: torch.dtype
) -> None:
    function, _ = VARIANTS[variant]
    inputs = _inputs(variant, tokens, width, hidden, dtype)
    expected = outcome(function, [value.double() for value in inputs], implementation="reference")
    found = outcome(function, inputs, implementation="closed_form")
    assert_same([value.double() for value in found], expected, TOLERANCE[dtype])


@pytest.mark.parametrize("variant", VARIANTS)
def test_backward_keeps_the_pre_activations_only_and_leaves_its_inputs_untouched(variant: str) -> None:
    function, _ = VARIANTS[variant]
    leaves = [value.requires_grad_() for value in _inputs(variant, (2, 9), 5, 7)]
    before = [value.detach().clone() for value in leaves]
    layers = len(leaves) // 2
    out = function(*leaves)
    assert kept_bytes(lambda: function(*leaves), *leaves) == layers * 18 * 7 * 8
    first = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    again = torch.autograd.grad(out.sum(), leaves)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert all(torch.equal(leaf, value) for leaf, value in zip(leaves, before, strict=True))
