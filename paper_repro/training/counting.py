"""The one place that counts: a model's parameters, the FLOPs of a computation, and the memory that its tensors take.

Count on the meta device: nothing is computed there, and no tensor takes any memory.
"""

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

ATEN = torch.ops.aten


def _added(_: torch.Size, one: torch.Size, two: torch.Size, **__: Any) -> int:
    return _product(one, two)


def _product(one: torch.Size, two: torch.Size, **_: Any) -> int:
    """Return FLOPs of (..., m, k) @ (..., k, n); the last n is missing where ``two`` is a vector."""
    return 2 * one.numel() * (two[-1] if len(two) > 1 else 1)


PRODUCTS: dict[Any, Callable[..., int]] = {
    **dict.fromkeys((ATEN.mv, ATEN.dot, ATEN.vdot), _product),
    **dict.fromkeys((ATEN.addmm_, ATEN.baddbmm_, ATEN.addmv, ATEN.addmv_), _added),
}
"""Products that torch's own counter leaves out: of vectors, and those that write into their first operand."""


def num_parameters(model: nn.Module, leave_out: Collection[str] = (), frozen: bool = False) -> int:
    """Return the model's number of trainable parameters; a tensor that two places share counts once.

    Args:
        leave_out: names of the model's children whose parameters do not count.
        frozen: whether those count, too, that are not trained.
    """
    named = ((name.partition(".")[0], parameter) for name, parameter in model.named_parameters())
    counted = (parameter for child, parameter in named if child not in leave_out)
    return sum(parameter.numel() for parameter in counted if frozen or parameter.requires_grad)


def count_flops(work: Callable[[], object], layer_norm: int = 0) -> int:
    """Return the FLOPs of the matrix products and convolutions that ``work()`` dispatches, two for each multiply-add.

    The counter sees each operation that torch dispatches: those inside a custom autograd function, those of a backward
    pass, and those of a derivative of a derivative.  Element-wise operations count nothing.

    Args:
        layer_norm: FLOPs for each element of a LayerNorm's input in the forward pass.
    """
    return sum(flops_by_operation(work, layer_norm).values())


def flops_by_operation(work: Callable[[], object], layer_norm: int = 0) -> dict[Any, int]:
    """Return the FLOPs of ``count_flops`` by operation, for example ``torch.ops.aten.mm``."""
    layer_norms = {ATEN.native_layer_norm: lambda shape, *_, **__: layer_norm * shape.numel()}
    counter = FlopCounterMode(display=False, custom_mapping={**PRODUCTS, **layer_norms})
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    with counter:
        work()
    return dict(counter.get_flop_counts().get("Global", {}))


class _NoModules(contextlib.AbstractContextManager[None]):
    """Keeps torch's counter from sorting FLOPs by module, whose hooks fail where a forward pass differentiates."""

    parents = ("Global",)

    def __exit__(self, *_: object) -> None:
        """Nothing was hooked."""


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the bytes of the tensors that ``work()`` makes and that live at once, at the moment when they are most."""
    with _Peak() as peak:
        work()
    return peak.bytes


class _Peak(TorchDispatchMode):
    """Follows each storage that an operation makes for as long as it lives; a view makes none."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._sum = 0
        # A weak reference keeps the storage's address from being given to another one.
        self._given: dict[int, StorageWeakRef] = {}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in _storages((args, kwargs)):
            if storage._cdata not in self._made and storage._cdata not in self._given:
                self._given[storage._cdata] = StorageWeakRef(storage)
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            if storage._cdata not in self._made and storage._cdata not in self._given:
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self._sum += storage.nbytes()
        if self._sum > self.bytes:
            for key in [key for key, (made, _) in self._made.items() if made.expired()]:
                self._sum -= self._made.pop(key)[1]
            self.bytes = max(self.bytes, self._sum)
        return out


def _storages(tree: object) -> list[torch.UntypedStorage]:
    return [value.untyped_storage() for value in tree_leaves(tree) if isinstance(value, Tensor)]
