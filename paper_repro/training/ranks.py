"""The processes that train one cell together, one per device: who they are, what they share, how they stop together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import Tensor

from paper_repro.cells.tasks import Report, StopRequestedError
from paper_repro.training.batches import map_tensors, tensors_of
from paper_repro.training.callbacks import LossLog, Watch
from paper_repro.training.journal import Silent
from paper_repro.training.machine import Machine
from paper_repro.training.module import Tree

PATIENCE = timedelta(days=7)
"""How long a process waits for another: rank 0 may be preparing data; that one has died is seen elsewhere."""
_GO, _SAVE, _END, _STOP = range(4)


@dataclass(frozen=True)
class Rank:
    """One of ``count`` processes."""

    index: int = 0
    count: int = 1
    words: Any = None
    """The process group for messages on the CPU."""
    local: int = 0
    """The number of the process on its node."""
    node: int = 0

    def share(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        if self.count == 1:
            return value
        box = torch.tensor([value])
        dist.broadcast(box, 0, group=self.words)
        return int(box)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` over the ranks; does not wait for the device."""
        if self.count == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total / self.count

    def own(self, of_slots: Mapping[int, Tree]) -> dict[int, Tree]:
        """Return the trees of the slots that this rank computes: slot s is computed by rank s mod W."""
        return {slot: tree for slot, tree in of_slots.items() if slot % self.count == self.index}

    def collect(self, own: Mapping[int, Tree]) -> dict[int, Tree]:
        """Rank 0 receives the trees of all slots, on the CPU; the other ranks keep their own.

        Every rank has to call this, with trees of the same shapes.
        """
        if self.count == 1 or not tensors_of(list(own.values())):
            return dict(own)
        if self.index:
            for tensor in tensors_of([own[slot] for slot in sorted(own)]):
                dist.send(_bytes_of(tensor.cpu()), 0, group=self.words)
            return dict(own)
        found = dict(own)
        for other in range(1, self.count):
            for slot in sorted(own):
                found[slot + other] = map_tensors(partial(self._received, other), own[slot])
        return found

    def _received(self, other: int, like: Tensor) -> Tensor:
        tensor = torch.empty(like.shape, dtype=like.dtype)
        dist.recv(_bytes_of(tensor), other, group=self.words)
        return tensor


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor; gloo does not send every type."""
    return tensor.contiguous().view(-1).view(torch.uint8)


class Ranks(LightningEnvironment):
    """Tells Lightning that the processes are there already, and which of them this one is."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self._rank = rank

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def local_rank(self) -> int:
        return self._rank.local

    def node_rank(self) -> int:
        return self._rank.node

    def set_global_rank(self, rank: int) -> None:
        super().set_global_rank(self._rank.index)

    def set_world_size(self, size: int) -> None:
        super().set_world_size(self._rank.count)


def meeting_place(count: int, port: int | None = None) -> Any:
    """Return where ``count`` processes of this computer find one another: opened at a free port, or that of rank 0."""
    opened = port is None
    return dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port or 0, count, is_master=opened, wait_for_workers=not opened, timeout=PATIENCE
    )


def join(index: int, count: int, store: Any, device: torch.device, local: int | None = None, node: int = 0) -> Rank:
    """Meet the other processes in a store, that of ``meeting_place`` or of the nodes; ``dist.destroy_process_group``
    takes leave of them.

    Args:
        local: the number of the process on its node; None: there is one node.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=index, world_size=count, timeout=PATIENCE)
    words = dist.new_group(backend="gloo", timeout=PATIENCE)
    return Rank(index, count, words, index if local is None else local, node)


class _Leading(Watch):
    """Rank 0's: what it decides by its clock and its user, it tells the others."""

    def __init__(
        self,
        log: LossLog,
        machine: Machine,
        report: Report,
        save: Callable[[int], None],
        say: Callable[[int], int],
        journal: Silent | None = None,
    ) -> None:
        def save_together(step: int) -> None:
            say(_SAVE)
            save(step)

        super().__init__(log, machine, report, save_together, journal)
        self._say = say

    def after_step(self, step: int) -> bool:
        going = super().after_step(step)
        if not going:  # otherwise ``stop_if_requested`` has spoken
            self._say(_END)
        return going

    def stop_if_requested(self, step: int) -> None:
        try:
            super().stop_if_requested(step)
        except StopRequestedError:
            self._say(_STOP)
            raise
        self._say(_GO)


class _Following(Watch):
    """Another rank's: after every step it does what rank 0 says."""

    def __init__(
        self, log: LossLog, machine: Machine, report: Report, save: Callable[[int], None], hear: Callable[[int], int]
    ) -> None:
        super().__init__(log, machine, report, save)
        self._hear = hear

    def after_step(self, step: int) -> bool:
        while (word := self._hear(_GO)) == _SAVE:
            self.save(step)
        if word == _STOP:
            raise StopRequestedError(f"rank 0 stopped after step {step}")
        return word == _GO

    def stop_if_requested(self, step: int) -> None:
        self.after_step(step)


def watch_for(
    rank: Rank,
    log: LossLog,
    machine: Machine,
    report: Report,
    save: Callable[[int], None],
    journal: Silent | None = None,
) -> Watch:
    """Return the watch of a run: alone, leading, or following rank 0."""
    if rank.count == 1:
        return Watch(log, machine, report, save, journal)
    if rank.index:
        return _Following(log, machine, report, save, rank.share)
    return _Leading(log, machine, report, save, rank.share, journal)
