"""What holds for every op.

Within ``differentiable`` second derivatives under "auto" are the definition's; outside of it the ways that have first
derivatives only say so.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from paper_repro.kernels import (
    causal_attention,
    energy_attention,
    linear_ce,
    nrgpt_block,
    projected_step,
    qk_rotary,
    rms_norm,
    scaled_swiglu,
    self_slot_attention,
    sphere_step,
    swiglu,
    tied_attention,
)
from paper_repro.kernels.dispatch import differentiable
from paper_repro.models.common import no_positions, textbook_tables
from paper_repro.training.counting import peak_bytes

TARGETS = torch.tensor([[0, 2, 1], [4, 4, 3]])
TABLES = textbook_tables(3, 4, dtype=torch.float64)


class Op(NamedTuple):
    """An op of some leaves; its ways that have gradients, the best first; what the first then raises at a second one,
    if it has first derivatives only.
    """

    compute: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    ways: tuple[str, ...]
    error: str | None = "has first derivatives in reverse mode only: compute it within .*differentiable.order=2."


OPS = {
    "causal_attention": Op(
        causal_attention.causal_attention, ((2, 2, 3, 2),) * 3, ("fused",), "derivative for .* is not implemented"
    ),
    "energy_attention": Op(
        lambda q, k, **way: _sum(energy_attention.energy_attention(q, k, 0.7, **way)), ((1, 2, 3, 2),) * 2, (), None
    ),
    "linear_ce": Op(
        lambda h, weight, scale, **way: linear_ce.linear_cross_entropy(h, weight, TARGETS, scale, **way),
        ((2, 3, 2), (5, 2), (5,)),
        ("closed_form", "fused"),
    ),
    "one_layer": Op(nrgpt_block.one_layer_gradient, ((3, 2), (4, 2), (4,)), ("closed_form",)),
    "two_weights": Op(nrgpt_block.two_weight_gradient, ((3, 2), (4, 2), (4,), (2, 4), (2,)), ("closed_form",)),
    "projected_step": Op(
        lambda z, t, **way: projected_step.projected_step(z, t, 0.3, **way), ((2, 4), (2, 4)), (), None
    ),
    "image_step": Op(
        lambda y, patches, bias, **way: projected_step.image_step(y, patches, bias, 0.3, **way),
        ((1, 3, 3, 2), (1, 4, 8), (2,)),
        (),
        None,
    ),
    "qk_rotary": Op(
        lambda x, scale, **way: qk_rotary.rotate(x, TABLES, scale, True, **way),
        ((1, 3, 2, 4), (2, 4)),
        ("fused", "closed_form"),
    ),
    "rms_norm": Op(
        lambda x, weight, **way: rms_norm.rms_norm(x, weight, 1e-5, **way), ((2, 3), (3,)), ("closed_form",), None
    ),
    "swiglu": Op(swiglu.swiglu, ((2, 6),), ("closed_form",), None),
    "scaled_swiglu": Op(scaled_swiglu.scaled_swiglu, ((2, 6), (3,), (3,)), ("fused",)),
    "self_slot_attention": Op(
        lambda *t, **way: self_slot_attention.self_slot_attention(*t, 1, **way),
        ((2, 2, 3, 2),) * 3 + ((2, 2, 4, 2),) * 2,
        ("fused",),
        None,
    ),
    "sphere_step": Op(sphere_step.sphere_step, ((2, 4), (2, 4), (4,)), ("fused",)),
    "tied_attention": Op(
        lambda q, k, **way: tied_attention.tied_attention(q, k, None, None, no_positions(k), 1.3, **way)[0],
        ((1, 3, 2, 2), (1, 3, 2, 2)),
        ("fused",),
    ),
    "tied_descent": Op(
        lambda *t, **way: tied_attention.descend(*t, num_steps=2, tau=1.3, **way),
        ((1, 3, 2), (1, 3, 2, 2), (4, 2), (4, 2), (1, 3, 2)),
        ("fused",),
    ),
}


def _sum(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


@pytest.fixture(params=OPS)
def op(request: pytest.FixtureRequest) -> Op:
    return OPS[request.param]


def _leaves(op: Op) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in op.shapes]


def _second(op: Op, leaves: list[Tensor], **way: str) -> list[Tensor]:
    """The gradients of the sum of squares of the first leaf's gradient; 0 for what it does not depend on."""
    out = op.compute(*leaves, **way)
    (first,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    return list(torch.autograd.grad(first.square().sum(), leaves, materialize_grads=True))


def test_within_the_scope_second_derivatives_are_the_definition_s(op: Op) -> None:
    leaves = _leaves(op)
    expected = _second(op, leaves, implementation="reference")
    assert float(expected[0].abs().max()) > 0
    with differentiable(order=2):
        found = _second(op, leaves)
    _close(found, expected)


def test_outside_of_it_a_way_with_first_derivatives_says_so(op: Op) -> None:
    if op.error is None:
        _second(op, _leaves(op))
        return
    with pytest.raises((NotImplementedError, RuntimeError), match=op.error):
        _second(op, _leaves(op), implementation=op.ways[0])


def test_a_gradient_within_vmap_that_is_differentiated_again_is_the_definition_s(op: Op) -> None:
    """A stack of two models, the inner gradient by torch.func, the outer one by autograd, without any scope."""
    stacked = [torch.stack([leaf.detach(), 1.3 * leaf.detach()]).requires_grad_() for leaf in _leaves(op)]

    def second(**way: str) -> list[Tensor]:
        gradient = torch.func.grad(lambda *given: op.compute(*given, **way).square().sum())
        first = torch.func.vmap(gradient)(*stacked)
        return list(torch.autograd.grad(first.square().sum(), stacked, materialize_grads=True))

    _close(second(), second(implementation="reference"), 1e-11)


def test_forward_mode_is_the_definition_s(op: Op) -> None:
    leaves = tuple(leaf.detach() for leaf in _leaves(op))
    tangents = tuple(torch.ones_like(leaf) for leaf in leaves)
    found = torch.func.jvp(op.compute, leaves, tangents)
    _close(found, torch.func.jvp(lambda *given: op.compute(*given, implementation="reference"), leaves, tangents))


def test_rows_and_gradients_may_lie_apart_and_inputs_are_left_untouched(op: Op) -> None:
    plain = _leaves(op)
    strided = [torch.stack([leaf.detach()] * 2, -1)[..., 1].requires_grad_() for leaf in plain]
    expected = op.compute(*plain, implementation="reference")
    apart = torch.stack([torch.full_like(expected, 0.5)] * 2, -1)[..., 0]
    gradients = torch.autograd.grad(expected, plain, apart)
    for way in ("auto", *op.ways):
        found = op.compute(*strided, implementation=way)
        _close((found, *torch.autograd.grad(found, strided, apart)), (expected, *gradients))
        assert all(torch.equal(one, two) for one, two in zip(plain, strided, strict=True))


def test_half_precision_is_close_also_under_autocast(op: Op) -> None:
    exact = op.compute(*(leaf.detach() for leaf in _leaves(op)), implementation="reference")
    for way in ("auto", "fused") if "fused" in op.ways or not op.ways else ("auto",):
        dtype = torch.float16 if way == "fused" else torch.bfloat16  # Triton's interpreter gets bfloat16 wrong
        leaves = [leaf.detach().to(dtype) for leaf in _leaves(op)]
        with torch.autocast("cpu", torch.bfloat16):
            cast = op.compute(*(leaf.float() for leaf in leaves), implementation=way)
        for found in (op.compute(*leaves, implementation=way), cast):
            assert float((found.double() - exact).norm() / exact.norm()) < 3e-2


def _close(found: Iterable[Tensor], expected: Iterable[Tensor], tolerance: float = 1e-12) -> None:
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def test_shapes_that_do_not_fit_and_unknown_ways_are_refused(op: Op) -> None:
    first, *others = (leaf.detach() for leaf in _leaves(op))
    with pytest.raises(ValueError, match=r"shape|must"):
        op.compute(torch.cat([first, first[..., :1]], -1), *others)
    with pytest.raises(ValueError, match=r"implementation must be one of auto, .*reference, got 'fast'"):
        op.compute(first, *others, implementation="fast")


@pytest.mark.parametrize("name", ["rms_norm", "swiglu"])
def test_a_hessian_vector_product_of_a_chain_by_hand_keeps_less_than_autograd_does(name: str) -> None:
    x, weight = (torch.randn(shape, requires_grad=True) for shape in ((400, 8), (8,)))
    leaves = [x, weight] if name == "rms_norm" else [x]

    def chain(given: Tensor, way: str) -> Tensor:
        for _ in range(6):
            read = (given, weight) if name == "rms_norm" else (torch.cat([given, given], -1),)
            given = OPS[name].compute(*read, implementation=way)
        return given

    def step(way: str) -> None:
        inner = torch.func.grad(lambda given: chain(given, way).pow(2).sum())(x)
        torch.autograd.grad(inner.square().sum(), leaves)

    assert peak_bytes(lambda: step("closed_form")) < 0.6 * peak_bytes(lambda: step("reference"))
