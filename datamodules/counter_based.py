"""Batches that are a function of the step, so that a resumed run equals an uninterrupted one bit for bit."""

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, IterableDataset

Batch = Any


class CounterBasedDataModule(L.LightningDataModule):
    """Training batches addressed by step, evaluation batches addressed by split.

    A subclass computes ``train_batch(step)`` from its seed and the step alone: no hidden state that a resume would have
    to restore.  The same object feeds Lightning (through the loaders) and the stacked trainer (directly).
    """

    @abstractmethod
    def train_batch(self, step: int) -> Batch:
        """Batch ``step`` (0-based), that of optimiser step ``step`` if A is 1: tensors, or a tuple or dict of them."""

    def example_batch(self) -> Batch:
        """A batch of the shapes and types of training, for counting; a subclass need not read its data for it."""
        return self.train_batch(0)

    @abstractmethod
    def evaluation_batches(self, split: str) -> Iterable[Batch]:
        """Every batch of the split ("train", "val", "test" ...), in order, once."""

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The splits that are evaluated after training, in the order of their metrics."""

    def data_hashes(self) -> dict[str, str]:
        """SHA-256 of what the run actually saw, by name; part of the record's provenance."""
        return {}

    def train_dataloader(self) -> DataLoader[Batch]:
        trainer, first, stride = self.trainer, 0, 1
        if trainer is not None:
            stride = trainer.world_size
            first = trainer.global_rank + stride * trainer.accumulate_grad_batches * trainer.global_step
        return DataLoader(_Batches(self, first, stride), batch_size=None)

    def test_dataloader(self) -> list[DataLoader[Batch]]:
        return [DataLoader(_Split(self, split), batch_size=None) for split in self.splits]


def window_starts(tokens: int, window: int, count: int, seed: int) -> torch.Tensor:
    """Where ``count`` random windows of ``window`` + 1 tokens begin in a stream, (count,)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(tokens - window, (count,), generator=generator)


class _Batches(IterableDataset[Batch]):
    def __init__(self, data: CounterBasedDataModule, first: int, stride: int) -> None:
        self.data, self.first, self.stride = data, first, stride

    def __iter__(self) -> Iterator[Batch]:
        yield from map(self.data.train_batch, itertools.count(self.first, self.stride))


class _Split(IterableDataset[Batch]):
    def __init__(self, data: CounterBasedDataModule, split: str) -> None:
        self.data, self.split = data, split

    def __iter__(self) -> Iterator[Batch]:
        yield from self.data.evaluation_batches(self.split)


def permutation(length: int, seed: int) -> torch.Tensor:
    """A permutation of ``range(length)``, (length,), int64, that depends on the seed only."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))
