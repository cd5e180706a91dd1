"""Which way an op takes: by its tensors, by the derivatives that are asked for, and by what the process prefers.

Every op lists its ways, the best first and the definition last, and takes ``implementation``: "auto", the best way that
can compute what is asked for, or the name of a way.  "fused" is a kernel (Triton's, or one that torch has),
"closed_form" is written by hand in PyTorch, "reference" is the definition, which autograd differentiates to any order.

Every op raises ValueError for shapes and numbers that do not fit and for an implementation that is unknown or not
possible, and NotImplementedError for a derivative that the way which was insisted on lacks.
"""

import contextlib
import functools
import importlib.util
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import (
    CGradInterpreterPtr,
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_functorch_wrapped_tensor,
    peek_interpreter_stack,
)
from torch.autograd import forward_ad

from paper_repro.kernels.preferences import speed

Call = TypeVar("Call")
ANY_ORDER = 1 << 30
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
EXACT = (torch.float32, torch.float64)
ANY_FLOATS: dict[str, Any] = {"dtypes": None, "one_dtype": False, "autocast": True, "transforms": False}
"""The options of a closed form that casts by itself, also under autocast, and knows no torch.func."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Way(Generic[Call]):
    """One way to compute an op, what it takes, and when "auto" takes it.  As it stands: the definition's."""

    name: str  # "fused", "closed_form" or "reference"
    call: Call  # what the op then calls; it imports Triton, if it needs it, when it is called
    order: int = ANY_ORDER  # the highest order of derivatives that it has: 0 for none
    triton: bool = False  # a Triton kernel: runs on CUDA, and anywhere under TRITON_INTERPRET=1, if asked for
    by_hand: bool = False  # not within torch.func.vmap, nor traced by torch.compile, nor for tensors without entries
    dtypes: Collection[torch.dtype] | None = None  # those of the tensors that it takes; None for all
    one_dtype: bool = False  # whether all tensors must have one dtype
    widest: int | None = None  # the longest row that it takes
    transforms: bool = True  # whether it may be called within a transform of torch.func
    vmap: bool = False  # whether that may be torch.func.vmap though it is by hand
    autocast: bool = True  # whether it may be called under autocast
    auto_on: Collection[str] | None = None  # device types on which "auto" takes it; None for all
    auto_order: int = 0  # "auto" takes it from this order on: 1 where it saves nothing without a backward pass
    auto_large: bool = False  # "auto" takes it only where the op says that there is enough to save


def triton_way(call: Call, **options: Any) -> Way[Call]:
    """Return a way "fused" by a Triton kernel, by default with first derivatives and outside of torch.func."""
    usual = {"order": 1, "dtypes": FLOATS, "transforms": False}
    return Way("fused", call, triton=True, by_hand=True, **{**usual, **options})


def closed_form_way(call: Call, *, order: int, **options: Any) -> Way[Call]:
    """Return a way "closed_form", by default an autograd.Function of derivatives by hand in the tensors' one dtype."""
    usual = {"dtypes": EXACT, "one_dtype": True, "autocast": False}
    return Way("closed_form", call, order=order, by_hand=True, **{**usual, **options})


class _Scope:
    order = 1


@contextlib.contextmanager
def differentiable(order: int = 2) -> Iterator[None]:
    """Within this scope of the process derivatives up to ``order`` may be asked for: "auto" takes ways that have them.

    Enter it around the forward pass of what is differentiated twice, for example of an energy whose gradient is made
    with ``create_graph=True``.

    Raises:
        ValueError: an order below 1.
    """
    if not isinstance(order, int) or order < 1:
        raise ValueError(f"order must be a whole number of at least 1, got {order!r}")
    outer, _Scope.order = _Scope.order, max(order, _Scope.order)
    try:
        yield
    finally:
        _Scope.order = outer


def derivative_order(*tensors: Tensor) -> int:
    """Return the order of derivatives that may be asked for of an op of these tensors.

    0 where no gradient is recorded; else 1, or the order of the scope ``differentiable``.  Within torch.func each
    ``grad`` counts one, and one more where autograd may differentiate the outermost.  ``ANY_ORDER`` in forward mode,
    for which the definitions alone have derivatives.
    """
    if torch.compiler.is_compiling():
        return _compiled_order(tensors)
    if forward_ad._current_level >= 0:
        return ANY_ORDER
    found = int(torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
    if peek_interpreter_stack() is not None:
        found = _transformed_order(tensors)
    return max(found, _Scope.order) if found else 0


def choose(
    op: str,
    ways: Sequence[Way[Call]],
    implementation: str,
    tensors: Sequence[Tensor],
    *,
    order: int | None = None,
    width: int = 0,
    large: bool = True,
) -> Call:
    """Return the ``call`` of the way that ``op`` takes.

    A way's name insists on it, also where a derivative may be asked for that it lacks: it then says so when that is
    computed.  "auto" takes the definition if the process prefers it (``preferences.prefer``), else the first of
    ``ways`` that is possible; on CUDA it says once in the log why a kernel is not.  Under Triton's interpreter
    (TRITON_INTERPRET=1, for tests) a kernel that is asked for runs on a CPU, also in float64.

    Args:
        op: its name, for messages.
        ways: the best first, the definition last.
        implementation: "auto" or the name of a way.
        tensors: everything that the op reads and that floats.
        order: of the derivatives that may be asked for; None finds it by ``derivative_order``.
        width: the length of the rows that a kernel would hold.
        large: whether there is enough to save for ways with ``auto_large``.

    Raises:
        ValueError: a word that the op does not have, or a way that is not possible; the message has the reason.
    """
    order = derivative_order(*tensors) if order is None else order
    if implementation != "auto":
        return _insisted(op, ways, implementation, tensors, order, width)
    if speed().implementation == "reference":
        return ways[-1].call
    for way in ways:
        if (
            not way.auto_order <= order <= way.order
            or (way.auto_large and not large)
            or (way.auto_on is not None and device_type(tensors[0]) not in way.auto_on)
        ):
            continue
        obstacle = _obstacle(way, tensors, width, False)
        if obstacle is None:
            return way.call
        if way.triton and tensors[0].is_cuda and not torch.compiler.is_compiling():
            _say_once(op, obstacle)
    raise AssertionError(f"{op}: the last way must be the definition")


class Shapes:
    """The shapes that go together: ``Shapes(h="... D", alpha="D|1")``.

    A name is one size, the same wherever it stands, "D|1" D or 1, and "..." any sizes, the same wherever they stand.
    """

    def __init__(self, **patterns: str) -> None:
        self.patterns = [pattern.split() for pattern in patterns.values()]
        self.text = ", ".join(f"{name} ({pattern.replace(' ', ', ')})" for name, pattern in patterns.items())

    def check(self, *tensors: Tensor | None) -> None:
        """Raise ValueError for shapes that do not fit; None stands for a tensor that is not given."""
        sizes: dict[str, Any] = {}
        for pattern, tensor in zip(self.patterns, tensors, strict=True):
            if tensor is not None and not _fits(pattern, tensor.shape, sizes):
                found = ", ".join("None" if one is None else str(tuple(one.shape)) for one in tensors)
                raise ValueError(f"shapes must be {self.text}; got {found}")


def _fits(pattern: list[str], shape: torch.Size, sizes: dict[str, Any]) -> bool:
    if pattern[:1] == ["..."]:
        pattern, rest = pattern[1:], len(shape) - len(pattern) + 1
        if rest < 0 or sizes.setdefault("...", shape[:rest]) != shape[:rest]:
            return False
        shape = shape[rest:]
    return len(pattern) == len(shape) and all(
        (name.endswith("|1") and size == 1) or sizes.setdefault(name.removesuffix("|1"), size) == size
        for name, size in zip(pattern, shape, strict=True)
    )


def device_type(tensor: Tensor) -> str:
    """Return the type of the tensor's device, or that of the device for which a computation is counted."""
    return speed().device or tensor.device.type


def under_autocast(tensor: Tensor) -> bool:
    """Return whether autocast is active on the tensor's device."""
    device = tensor.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _insisted(
    op: str, ways: Sequence[Way[Call]], implementation: str, tensors: Sequence[Tensor], order: int, width: int
) -> Call:
    """Return the way of this name, first one that has the derivatives."""
    named = sorted((way for way in ways if way.name == implementation), key=lambda way: way.order < order)
    if not named:
        words = dict.fromkeys(["auto", *(way.name for way in ways)])
        raise ValueError(f"{op}: implementation must be one of {', '.join(words)}, got {implementation!r}")
    obstacles = []
    for way in named:
        obstacle = _obstacle(way, tensors, width, True)
        if way.order == 0 and order > 0:
            obstacle = "it has no gradient, and one is asked for (torch.no_grad() asks for none)"
        if obstacle is None:
            return way.call
        obstacles.append(obstacle)
    raise ValueError(
        f"{op}: implementation={implementation!r} is not possible: {' / '.join(obstacles)}; "
        "use implementation='auto' or 'reference'"
    )


def _obstacle(way: Way[Call], tensors: Sequence[Tensor], width: int, insisted: bool) -> str | None:
    """Return why the way cannot compute; None if it can."""
    device, taken = tensors[0].device, way.dtypes
    if way.widest is not None and width > way.widest:
        return f"it takes rows of at most {way.widest}, got {width}"
    if way.name != "reference" and any(tensor.device != device for tensor in tensors):
        return f"tensors on different devices ({', '.join(sorted({str(tensor.device) for tensor in tensors}))})"
    if way.triton and device_type(tensors[0]) != "cuda":
        if not (insisted and os.environ.get("TRITON_INTERPRET") == "1"):
            return f"it runs on cuda, the tensors are on {device}"
        taken = (*(taken or ()), torch.float64)
    dtypes = {tensor.dtype for tensor in tensors}
    if way.one_dtype and len(dtypes) > 1:
        return f"it needs one dtype, got {', '.join(sorted(map(str, dtypes)))}"
    if odd := [] if taken is None else sorted(str(dtype) for dtype in dtypes if dtype not in taken):
        return f"it does not take {', '.join(odd)}"
    if way.by_hand and any(tensor.numel() == 0 for tensor in tensors):
        return "a tensor is empty"
    if way.by_hand and torch.compiler.is_compiling():
        return "torch.compile cannot trace it, and fuses the definition itself"
    if not way.transforms and peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if way.by_hand and not way.vmap and TransformType.Vmap in (level.key() for level in get_interpreter_stack() or []):
        return "torch.func.vmap is active"
    if not way.autocast and under_autocast(tensors[0]):
        return "autocast is active"
    if way.triton and not _has_triton():
        return "Triton is not installed (pip install triton)"
    return None


def _transformed_order(tensors: Sequence[Tensor]) -> int:
    stack = get_interpreter_stack() or []
    kinds = [interpreter.key() for interpreter in stack]
    if TransformType.Jvp in kinds:
        return ANY_ORDER
    levels = kinds.count(TransformType.Grad)
    outermost = stack[kinds.index(TransformType.Grad)] if levels else None
    outside = torch.is_grad_enabled() if outermost is None else CGradInterpreterPtr(outermost).prevGradMode()
    return levels + int(outside and any(_unwrapped(tensor).requires_grad for tensor in tensors))


def _compiled_order(tensors: Sequence[Tensor]) -> int:
    """Return an upper bound: the compiler sees neither what a transform wraps nor the grad mode outside."""
    transforms, levels = _transforms()
    if levels:
        return max(levels + 1, _Scope.order)
    asked = torch.is_grad_enabled() and (transforms > 0 or any(tensor.requires_grad for tensor in tensors))
    return _Scope.order if asked else 0


@torch.compiler.assume_constant_result
def _transforms() -> tuple[int, int]:
    """Return how many transforms of torch.func are active, and how many differentiate: ANY_ORDER in forward mode."""
    kinds = [interpreter.key() for interpreter in get_interpreter_stack() or []]
    return len(kinds), ANY_ORDER if TransformType.Jvp in kinds else kinds.count(TransformType.Grad)


def _unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor below all transforms of torch.func."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _say_once(op: str, obstacle: str) -> None:
    _log.warning("%s: not computed by its kernel: %s", op, obstacle)


def launching_nothing() -> contextlib.AbstractContextManager[None]:
    """Launch no Triton kernel within this scope, so that tensors without storage have the sizes of its results."""
    if not _has_triton():
        return contextlib.nullcontext()
    from paper_repro.kernels.triton import no_launches

    return no_launches()
