"""What a carry is made of: a ring of the last entries, and narrow forms in which large ones are kept.

A carry lives between the steps of a run and is part of its checkpoints.  A replay buffer of 192 texts of 256 tokens,
each with a probability for every one of 50,277 tokens, takes 9.9 GB in float32, 4.9 GB in bfloat16, and 19 MB as the
64 largest probabilities with their indices.

Everything here works under ``torch.func.vmap`` and on the meta device.  Legend: N entries of a ring, B entries that are
added together, K chosen ones, V classes, and ``...`` for the shape of one tensor of an entry.
"""

from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import at_least
from paper_repro.training.batches import map_tensors, tensors_of

Ring = dict[str, Any]
"""``entries``: a tree of tensors (N, ...); ``written``: how many entries were ever added, int64, ()."""


def empty_ring(capacity: int, entries: Any, dtype: torch.dtype | None = torch.bfloat16) -> Ring:
    """Return a ring without entries, on the device of ``entries``.

    Args:
        capacity: N.
        entries: a tree of tensors (B, ...); shapes and types are taken from it.
        dtype: of the floating-point tensors; None keeps each one's own.

    Raises:
        ValueError: a capacity below 1, or more entries added together than the ring keeps.
    """
    at_least("capacity", capacity)
    first = tensors_of(entries)[0]
    if len(first) > capacity:
        raise ValueError(f"capacity={capacity}: entries are added {len(first)} at once, and none of them may be lost")

    def room(tensor: Tensor) -> Tensor:
        kept = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return torch.zeros(capacity, *tensor.shape[1:], dtype=kept, device=tensor.device)

    written = torch.zeros((), dtype=torch.int64, device=first.device)
    return {"entries": map_tensors(room, entries), "written": written}


def add(ring: Ring, entries: Any) -> Ring:
    """Return the ring with ``entries``, a tree of tensors (B, ...), in the place of the B oldest.

    The ring's memory is written in place, gradients are left behind.
    """
    kept = tensors_of(ring["entries"])
    new = tensors_of(entries)
    count = len(new[0])
    rows = _oldest_rows(ring, count)
    for own, other in zip(kept, new, strict=True):
        own[rows] = other.detach().to(own.dtype)
    return {"entries": ring["entries"], "written": ring["written"] + count}


def oldest(ring: Ring, count: int) -> Any:
    """Return copies of the B = ``count`` entries that the next ``add`` of as many overwrites, a tree of (B, ...)."""
    rows = _oldest_rows(ring, count)
    return map_tensors(lambda tensor: tensor[rows], ring["entries"])


def _oldest_rows(ring: Ring, count: int) -> Tensor:
    kept = tensors_of(ring["entries"])[0]
    return (ring["written"] + torch.arange(count, device=kept.device)) % len(kept)  # (B,)


def choose(ring: Ring, keys: Tensor, count: int, dtype: torch.dtype | None = None) -> tuple[Any, Tensor]:
    """K different entries at random, or as many as there are.

    Args:
        keys: (N,), uniform random numbers in [0, 1), one of the step's draws.
        count: K, at most N.
        dtype: of the floating-point tensors that are returned; None: as they are kept.

    Returns:
        The entries, a tree of tensors (K, ...), copied; and (K,), bool, False where the ring has no entry to give.
    """
    places = torch.arange(len(keys), device=keys.device)
    filled = places < ring["written"]  # (N,): a ring is filled from its first place on
    rows = torch.where(filled, keys, 2.0).argsort()[:count]  # (K,)

    def taken(tensor: Tensor) -> Tensor:
        chosen = tensor[rows]
        return chosen.to(dtype) if dtype is not None and chosen.is_floating_point() else chosen

    return map_tensors(taken, ring["entries"]), filled[rows]


def largest(probabilities: Tensor, count: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Return the ``count`` largest probabilities (..., V) and their indices, (..., count) each; 6 bytes per pair."""
    values, indices = probabilities.detach().topk(count, dim=-1)
    return {"values": values.to(dtype), "indices": indices.to(torch.int32)}


def spread(kept: dict[str, Tensor], classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Probabilities (..., V) from ``largest``; what is missing to 1 is shared equally by the classes that were dropped.

    If none was dropped, or rounding has made the kept ones more than 1, they are divided by their sum.
    """
    values, indices = kept["values"].to(dtype), kept["indices"].long()  # (..., count)
    dropped = classes - values.shape[-1]
    total = values.sum(-1, keepdim=True)  # (..., 1)
    rest = (1 - total).clamp(min=0) / max(dropped, 1) if dropped else torch.zeros_like(total)
    values = values / (total + rest * dropped)
    return (rest / (total + rest * dropped)).expand(*values.shape[:-1], classes).scatter(-1, indices, values)
