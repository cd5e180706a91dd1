"""The tensors of a training step: batches, random draws, and the carry from one step to the next.

Each is a tree: a tensor, or a tuple, list or dict of trees.  Random tensors are drawn ahead of the loss, which cannot
draw under ``vmap``.  A ring has N entries, B are added together, K are chosen; V are classes, ``...`` is the shape of
one tensor of an entry.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from paper_repro.base.errors import UsageError, at_least, first_line
from paper_repro.base.identity import mix

Ring = dict[str, Any]
"""``entries``: a tree of tensors (N, ...); ``written``: how many entries were ever added, int64, ()."""


# Trees.


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    return tree_map_only(Tensor, function, batch)


def tensors_of(batch: Any) -> list[Tensor]:
    """Return the tensors of the batch, in the order in which ``map_tensors`` visits them."""
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]


def stack(batches: Sequence[Any]) -> Any:
    """Return one batch (S, ...) from S batches of tensors; UsageError: their shapes differ."""
    try:
        return tree_map(lambda *tensors: torch.stack(tensors), *batches)
    except RuntimeError as error:
        raise UsageError(
            f"models that are trained together need batches of tensors of one shape ({first_line(error)}): "
            "give their data the same batch size, or train these cells one by one"
        ) from error


def place(batch: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Return the batch on ``device``, its floating-point tensors as ``dtype`` (None: as they are)."""
    return map_tensors(lambda tensor: tensor.to(device, _dtype(tensor, dtype), non_blocking=True), batch)


def _dtype(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


# Draws: a module declares them, the trainer draws them.  Shape () is one number for the whole batch.


@dataclass(frozen=True)
class Normal:
    """Independent numbers of mean 0 and variance 1, float32."""

    shape: tuple[int, ...] = ()

    def sample(self, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.randn(self.shape, device=device, generator=generator, dtype=torch.float32)


@dataclass(frozen=True)
class Uniform:
    """Independent numbers, uniform in [0, 1), float32."""

    shape: tuple[int, ...] = ()

    def sample(self, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.rand(self.shape, device=device, generator=generator, dtype=torch.float32)


@dataclass(frozen=True)
class Integers:
    """Independent whole numbers, uniform in low, ..., high (both included), int64."""

    low: int
    high: int
    shape: tuple[int, ...] = ()

    def sample(self, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.randint(self.low, self.high + 1, self.shape, device=device, generator=generator)


Distribution = Normal | Uniform | Integers


def draw(
    declared: Mapping[str, Distribution], device: torch.device, seed: int, step: int, slot: int
) -> dict[str, Tensor]:
    """Draw the declared tensors of batch ``slot`` of optimiser step ``step``, by name; a GPU draws other numbers."""
    found = {}
    for name, distribution in declared.items():
        generator = None
        if device.type != "meta":
            generator = torch.Generator(device).manual_seed(mix(seed, "draw", name, step, slot))
        found[name] = distribution.sample(device, generator)
    return found


# Carries: a ring of the last entries, and narrow forms in which large ones are kept.


def empty_ring(capacity: int, entries: Any) -> Ring:
    """Return an empty ring for N = ``capacity`` entries like ``entries``, a tree of (B, ...), floats in bfloat16."""
    at_least("capacity", capacity)
    first = tensors_of(entries)[0]
    if len(first) > capacity:
        raise ValueError(f"capacity={capacity}: entries are added {len(first)} at once, and none of them may be lost")

    def room(tensor: Tensor) -> Tensor:
        return torch.zeros(capacity, *tensor.shape[1:], dtype=_dtype(tensor, torch.bfloat16), device=tensor.device)

    written = torch.zeros((), dtype=torch.int64, device=first.device)
    return {"entries": map_tensors(room, entries), "written": written}


def add(ring: Ring, entries: Any) -> Ring:
    """Write ``entries``, a tree of tensors (B, ...), in the place of the B oldest, without their gradients."""
    new = tensors_of(entries)
    count = len(new[0])
    kept = tensors_of(ring["entries"])[0]
    rows = (ring["written"] + torch.arange(count, device=kept.device)) % len(kept)  # (B,)
    for own, other in zip(tensors_of(ring["entries"]), new, strict=True):
        own[rows] = other.detach().to(own.dtype)
    return {"entries": ring["entries"], "written": ring["written"] + count}


def choose(ring: Ring, keys: Tensor, count: int, dtype: torch.dtype | None = None) -> tuple[Any, Tensor]:
    """Return K = ``count`` different entries, a tree of (K, ...) in ``dtype``, and (K,), False where there is none.

    ``keys``, (N,), are uniform random numbers in [0, 1).
    """
    filled = torch.arange(len(keys), device=keys.device) < ring["written"]  # (N,): filled from its first place on
    rows = torch.where(filled, keys, 2.0).argsort()[:count]  # (K,)
    chosen = map_tensors(lambda tensor: tensor[rows].to(_dtype(tensor, dtype)), ring["entries"])
    return chosen, filled[rows]


def largest(probabilities: Tensor, count: int) -> dict[str, Tensor]:
    """Return the ``count`` largest probabilities (..., V) and their indices, (..., count) each; 6 bytes per pair."""
    values, indices = probabilities.detach().topk(count, dim=-1)
    return {"values": values.to(torch.bfloat16), "indices": indices.to(torch.int32)}


def spread(kept: dict[str, Tensor], classes: int) -> Tensor:
    """Return probabilities (..., V), float32, from ``largest``; dropped classes share equally what is missing to 1."""
    values, indices = kept["values"].float(), kept["indices"].long()  # (..., count)
    dropped = classes - values.shape[-1]
    total = values.sum(-1, keepdim=True)  # (..., 1)
    rest = (1 - total).clamp(min=0) / max(dropped, 1) if dropped else torch.zeros_like(total)
    values = values / (total + rest * dropped)
    return (rest / (total + rest * dropped)).expand(*values.shape[:-1], classes).scatter(-1, indices, values)
