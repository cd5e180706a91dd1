"""What tests of kernels share: directions, values with gradients, and comparisons relative to the largest entry."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

ON_A_GPU = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels need a GPU"
)


def along(out: Tensor, place: int = 0) -> Tensor:
    """A direction for gradients, the same in every test."""
    return torch.cos((1 + place) * torch.arange(out.numel(), dtype=torch.float64)).reshape(out.shape).to(out)


def outcome(function: Callable[..., Any], inputs: Iterable[Tensor | None], **options: Any) -> list[Tensor]:
    """The value, or values, and the gradients of those that have one by all inputs that are there."""
    leaves = [None if value is None else value.detach().clone().requires_grad_() for value in inputs]
    found = function(*leaves, **options)
    values = [found] if isinstance(found, Tensor) else list(found)
    graded = {place: value for place, value in enumerate(values) if value.requires_grad}
    if not graded:
        return values
    directions = [along(value, place) for place, value in graded.items()]
    gradients = torch.autograd.grad([*graded.values()], [leaf for leaf in leaves if leaf is not None], directions)
    return [*(value.detach() for value in values), *gradients]


def assert_same(found: Iterable[Tensor], expected: Iterable[Tensor], tolerance: float, least: float = 0.0) -> None:
    """Each is within the tolerance times its largest entry, or ``least``."""
    for one, two in zip(found, expected, strict=True):
        allowed = tolerance * max(float(two.abs().max()), least)
        torch.testing.assert_close(one.double(), two.double(), rtol=0, atol=allowed, equal_nan=False)


def assert_as_defined(
    function: Callable[..., Any], inputs: Iterable[Tensor | None], way: str, tolerance: float, least: float = 0.0
) -> None:
    """A way has the values and gradients of the definition in float64, in the dtype of its inputs."""
    given = list(inputs)
    expected = outcome(function, _wide(given), implementation="reference")
    found = outcome(function, given, implementation=way)
    assert {value.dtype for value in found} == {value.dtype for value in given if value is not None}
    assert_same(found, expected, tolerance, least)


def assert_near(
    function: Callable[..., Any],
    inputs: Iterable[Tensor | None],
    way: str,
    tolerance: float = 1e-2,
    of_numbers: float = 1e-2,
) -> None:
    """The same by relative norms, which half precision moves by some roundings of 2^-9; single numbers are sums."""
    given = list(inputs)
    expected = outcome(function, _wide(given), implementation="reference")
    for one, two in zip(outcome(function, given, implementation=way), expected, strict=True):
        assert apart(one, two) < (tolerance if one.ndim else of_numbers)


def _wide(inputs: Iterable[Tensor | None]) -> list[Tensor | None]:
    return [None if value is None else value.double() for value in inputs]


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
