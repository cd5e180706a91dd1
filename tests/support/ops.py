"""What tests of kernels share: directions, values with gradients, and comparisons relative to the largest entry."""

import os
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

ON_A_GPU = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels need a GPU"
)


def along(out: Tensor, place: int = 0) -> Tensor:
    """A direction for gradients, the same in every test."""
    return torch.cos((1 + place) * torch.arange(out.numel(), dtype=torch.float64)).reshape(out.shape).to(out)


def outcome(function: Callable[..., Tensor], inputs: Iterable[Tensor | None], **options: object) -> list[Tensor]:
    """The value, and the gradients by all inputs that are there."""
    leaves = [None if value is None else value.detach().clone().requires_grad_() for value in inputs]
    out = function(*leaves, **options)
    return [out.detach(), *torch.autograd.grad(out, [leaf for leaf in leaves if leaf is not None], along(out))]


def assert_same(found: Iterable[Tensor], expected: Iterable[Tensor], tolerance: float) -> None:
    for one, two in zip(found, expected, strict=True):
        allowed = tolerance * float(two.abs().max())
        torch.testing.assert_close(one.double(), two.double(), rtol=0, atol=allowed, equal_nan=False)


def apart(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference over that of the expected numbers."""
    return float((found.double() - expected).norm() / expected.norm())


def kept_bytes(forward: Callable[[], object], *given: Tensor) -> int:
    """Bytes of all storages that autograd keeps of a forward pass, but for those of the tensors that are given."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = forward()  # held: what is kept must not be freed before it is counted
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    assert out is not None
    return sum(size for place, size in kept.items() if place not in known)
