"""Batches that are a function of the step, so that a resumed run equals an uninterrupted one bit for bit."""

import inspect
import itertools
import multiprocessing
import signal
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from paper_repro.base.configs import instantiate, locate
from paper_repro.base.errors import STOPPING, UsageError, at_least, end_with_parent
from paper_repro.base.identity import mix
from paper_repro.datamodules.array_shards import DataSource

Batch = Any
FROM_MACHINE = ("cache", "data_root")
"""Arguments that a data module may take; they come from the machine section, being no part of a cell's identity."""


class CounterBasedDataModule(L.LightningDataModule):
    """Training batches addressed by step, evaluation batches addressed by split.

    A subclass computes ``train_batch(step)`` from its seed and the step alone: no hidden state that a resume would have
    to restore.  The same object feeds Lightning (through the loader) and the stacked trainer (directly).

    ``workers`` processes compute batches ahead of training; 0: the training process computes each when it is needed.
    The batches are the same.
    """

    workers = 0
    whole_batches = False
    """Whether every rank gets every batch, to compute some of its rows."""

    @abstractmethod
    def train_batch(self, step: int) -> Batch:
        """Return batch ``step`` (0-based): tensors, or a tuple or dict of them."""

    def example_batch(self) -> Batch:
        """Return a batch of the shapes and types of training, for counting, preferably without reading the data."""
        return self.train_batch(0)

    @abstractmethod
    def evaluation_batches(self, split: str) -> Iterable[Batch]:
        """Return every batch of the split ("train", "val", "test" ...), in order, once."""

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The splits that are evaluated after training, in the order of their metrics."""

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of what the run actually saw, by name; part of the record's provenance."""
        return {}

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank from the trainer's step on."""
        trainer, first, stride = self.trainer, 0, 1
        if trainer is not None:
            rank, stride = (0, 1) if self.whole_batches else (trainer.global_rank, trainer.world_size)
            first = rank + stride * trainer.accumulate_grad_batches * trainer.global_step
        batches = _Batches(self, first, stride)
        if not self.workers:
            return DataLoader(batches, batch_size=None)
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UsageError("machine.data_workers: this system cannot fork processes, which it needs; set it to 0")
        return DataLoader(
            batches,
            batch_size=None,
            num_workers=self.workers,
            multiprocessing_context="fork",
            worker_init_fn=leave_signals_to_the_parent,
            persistent_workers=True,  # Lightning then ends them with the training, also after an error
        )

    def check_numbers(self, *names: str) -> None:
        """Begin the initialisation of a subclass that is a dataclass; ValueError: one of these arguments is below 1, or
        a seed is negative.  None is not looked at.
        """
        super().__init__()
        for name in names:
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), int("seed" not in name))


class SourceDataModule(CounterBasedDataModule):
    """Batches of the items of a ``source``; a subclass is a dataclass."""

    source: DataSource

    @property
    def splits(self) -> tuple[str, ...]:
        return self.source.splits

    def prepare_data(self) -> None:
        """Open and check the items."""
        _ = self.source.counts

    def data_hashes(self) -> dict[str, str]:
        return self.source.data_hashes()


def data_of(config: Mapping[str, Any]) -> CounterBasedDataModule:
    """Build a config's ``data`` section, with what the module takes of the ``machine`` section; UsageError: an unknown
    key, or a value that is refused.
    """
    node, machine = config["data"], config.get("machine") or {}
    taken = inspect.signature(locate(node["_target_"])).parameters
    extra = {name: machine[name] for name in FROM_MACHINE if name in taken and machine.get(name) is not None}
    data: CounterBasedDataModule = instantiate({**node, **extra})
    return data


class _Batches(IterableDataset[Batch]):
    """Batches first, first + stride, ...; of n worker processes, the w-th computes every n-th of them from the w-th on.

    The DataLoader takes one batch from each worker in turn, so their order is that of one process.
    """

    def __init__(self, data: CounterBasedDataModule, first: int, stride: int) -> None:
        self.data, self.first, self.stride = data, first, stride

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        index, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        steps = itertools.count(self.first + self.stride * index, self.stride * count)
        yield from map(self.data.train_batch, steps)


def leave_signals_to_the_parent(worker: int) -> None:
    """Ignore signals that stop a command and reach all its processes: the parent saves and ends its workers itself.

    A worker ends with its parent, also with one that is killed while the worker starts, which torch does not notice.
    """
    end_with_parent()
    for name in STOPPING:
        signal.signal(name, signal.SIG_IGN)


def generator_of(*seed: int | str) -> torch.Generator:
    """Return the generator of a seed, or of the stream that its parts name (``mix``)."""
    return torch.Generator().manual_seed(seed[0] if len(seed) == 1 and isinstance(seed[0], int) else mix(*seed))


def in_epochs(step: int, batch: int, length: int, *stream: int | str) -> list[int]:
    """Return the items of a batch in an endless sequence of epochs, each of which has all ``length`` items in an order
    of its own, whose seed is ``mix`` of the stream and the epoch.
    """
    rows = (divmod(place, length) for place in range(step * batch, (step + 1) * batch))
    return [int(cached_permutation(length, mix(*stream, epoch))[row]) for epoch, row in rows]


def permutation(length: int, seed: int) -> torch.Tensor:
    """Return a permutation of ``range(length)``, (length,), int64, that depends on the seed only."""
    return torch.randperm(length, generator=generator_of(seed))


cached_permutation = lru_cache(maxsize=4)(permutation)
