"""Documents that a small model learns in a few steps: each token is the one before it plus 1, some end early."""

from collections.abc import Iterator

import torch
from torch import Tensor

from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import CounterBasedDataModule


class Cycles(CounterBasedDataModule):
    """Batches of (ids, next ids), (B, T), with -100 behind the end of a document."""

    splits = ("train", "val")

    def __init__(self, words: int = 7, batch_size: int = 4, window: int = 6, seed: int = 0) -> None:
        super().__init__()
        self.words, self.batch_size, self.window, self.seed = words, batch_size, window, seed

    def train_batch(self, step: int) -> tuple[Tensor, Tensor]:
        return self._batch(mix(self.seed, "cycles", step))

    def evaluation_batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(2):
            yield self._batch(mix(0, "cycles", split, index))

    def _batch(self, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(self.words, (self.batch_size, 1), generator=generator)
        rows = (first + torch.arange(self.window + 1)) % self.words  # (B, T + 1)
        ends = torch.randint(2, self.window + 1, (self.batch_size, 1), generator=generator)
        targets = torch.where(torch.arange(self.window) < ends, rows[:, 1:], -100)
        return rows[:, :-1], targets
