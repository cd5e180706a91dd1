"""Batches as trees: a tensor, or a tuple, list or dict of them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from paper_repro.base.errors import UsageError


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Apply ``function`` to every tensor of the batch; the rest stays as it is."""
    return tree_map_only(Tensor, function, batch)


def tensors_of(batch: Any) -> list[Tensor]:
    """Return the tensors of the batch, in the order in which ``map_tensors`` visits them."""
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]


def device_of(batch: Any) -> torch.device:
    """Return the device of the batch's first tensor; the CPU if it has none."""
    return next((tensor.device for tensor in tensors_of(batch)), torch.device("cpu"))


def stack(batches: Sequence[Any]) -> Any:
    """Return one batch whose tensors have a leading model axis, (S, ...), from S batches of the same form.

    Raises:
        UsageError: the batches differ in form or shape, or hold something that is not a tensor.
    """
    first = batches[0]
    if isinstance(first, Tensor):
        try:
            return torch.stack(tuple(batches))
        except (RuntimeError, TypeError) as error:
            shapes = sorted({str(tuple(getattr(batch, "shape", ()))) for batch in batches})
            raise UsageError(
                f"models that are trained together need batches of one shape, found {', '.join(shapes)}: "
                "give their data the same batch size, or train these cells one by one"
            ) from error
    if isinstance(first, dict):
        return {key: stack([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(stack(items) for items in zip(*batches, strict=True))
    raise UsageError(f"a batch of models that are trained together holds tensors only, found {type(first).__name__}")


def place(batch: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Return the batch on ``device``, its floating-point tensors as ``dtype`` (None: as they are)."""

    def move(tensor: Tensor) -> Tensor:
        target = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.to(device, target, non_blocking=True)

    return map_tensors(move, batch)
