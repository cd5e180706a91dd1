"""RMSNorm and SwiGLU by hand against their definitions, to second order, by autograd and torch.func."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.rms_norm import rms_norm
from paper_repro.kernels.swiglu import swiglu
from paper_repro.training.counting import peak_bytes

OPS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "rms_norm": (lambda x, weight, way="auto": rms_norm(x, weight, 1e-3, way), ((2, 3, 7), (7,))),
    "swiglu": (lambda pre, way="auto": swiglu(pre, way), ((2, 3, 10),)),
}


@pytest.fixture(params=OPS)
def op(request: pytest.FixtureRequest) -> tuple[Callable[..., Tensor], list[Tensor]]:
    compute, shapes = OPS[request.param]
    generator = torch.Generator().manual_seed(3)
    return compute, [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("name", OPS)
def test_a_hessian_vector_product_of_a_chain_keeps_less_than_autograd_does(name: str) -> None:
    compute, shapes = OPS[name]
    x, weight = (torch.randn(shape, requires_grad=True) for shape in ((400, 8), (8,)))
    leaves = [x, weight][: len(shapes)]

    def chain(given: Tensor, way: str) -> Tensor:
        for _ in range(6):
            given = compute(given, weight, way) if name == "rms_norm" else compute(torch.cat([given, given], -1), way)
        return given

    def step(way: str) -> None:
        inner = torch.func.grad(lambda given: chain(given, way).pow(2).sum())(x)
        torch.autograd.grad(inner.square().sum(), leaves)

    assert peak_bytes(lambda: step("closed_form")) < 0.6 * peak_bytes(lambda: step("reference"))


def test_derivatives_by_hand_are_exact_to_second_order(op: tuple[Callable[..., Tensor], list[Tensor]]) -> None:
    compute, leaves = op

    def by_hand(*given: Tensor) -> Tensor:
        return compute(*given, way="closed_form")

    torch.testing.assert_close(by_hand(*leaves), compute(*leaves, way="reference"), rtol=1e-13, atol=1e-13)
    assert torch.autograd.gradcheck(by_hand, leaves)
    assert torch.autograd.gradgradcheck(by_hand, leaves)
