"""Clips in batches of windows: frames at even distances from a random start (EBT, D.2).

Letters: B windows, T frames of a window, V numbers of a frame's state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paper_repro.base.errors import at_least, one_of, positive
from paper_repro.datamodules.counter_based import SourceDataModule, generator_of, in_epochs
from paper_repro.datamodules.image_sources import TRAIN
from paper_repro.datamodules.video_sources import VideoSource


@dataclass(eq=False, repr=False)
class VideoData(SourceDataModule):
    """Windows of clips; a batch is (B, T, V), float32.

    A training batch follows from (``seed``, step) alone: every clip once an epoch, in an order of that epoch's, from a
    random start and at a random place.  An evaluation follows from ``evaluation_seed`` alone: the clips in turn, each
    time from another start and at another place.  Of a clip shorter than a window T evenly spaced frames are taken.

    Args:
        source: where the clips come from.
        num_frames: T, two or more.
        spacing: seconds from one frame to the next.
        batch_size: B, for evaluations, too.
        num_evaluation_windows: of a split.
        seed: of the training batches.
        evaluation_seed: of what is evaluated.
        data_root, cache: see ``DataSource.find``.
    """

    source: VideoSource
    num_frames: int = 16
    spacing: float = 0.25
    batch_size: int = 256
    num_evaluation_windows: int = 1_024
    seed: int = 0
    evaluation_seed: int = 0
    data_root: str | Path | None = None
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        self.check_numbers("batch_size", "num_evaluation_windows", "seed", "evaluation_seed")
        at_least("num_frames", self.num_frames, 2)
        positive("spacing", self.spacing)
        self.source.find(self.data_root, self.cache)

    def train_batch(self, step: int) -> Tensor:
        draws = _draws(self.batch_size, self.seed, "videos", "batch", step)
        count = self.source.counts[TRAIN]
        chosen = in_epochs(step, self.batch_size, count, self.seed, "videos", "order")
        rows = [self.window_of(TRAIN, index, some) for index, some in zip(chosen, draws, strict=True)]
        return torch.from_numpy(np.stack(rows))

    def example_batch(self) -> Tensor:
        return torch.zeros(self.batch_size, self.num_frames, self.source.state_size)

    def evaluation_batches(self, split: str) -> Iterator[Tensor]:
        one_of("split", split, self.splits)
        count = self.source.counts[split]
        draws = _draws(self.num_evaluation_windows, self.evaluation_seed, "videos", "evaluation", split)
        for first in range(0, len(draws), self.batch_size):
            places = range(first, min(first + self.batch_size, len(draws)))
            rows = [self.window_of(split, place % count, draws[place]) for place in places]
            yield torch.from_numpy(np.stack(rows))

    def window_of(self, split: str, index: int, draws: Sequence[float]) -> np.ndarray:
        """Return a window of a clip, (T, V); ``draws`` are four numbers in [0, 1): of the start and for the source."""
        duration, length = self.source.duration(split, index), (self.num_frames - 1) * self.spacing
        start, spacing = draws[0] * (duration - length), self.spacing
        if duration < length:
            start, spacing = 0.0, duration / (self.num_frames - 1)
        times = [start + number * spacing for number in range(self.num_frames)]
        return self.source.states(split, index, times, draws[1:])


def _draws(count: int, *stream: str | int) -> list[list[float]]:
    return torch.rand(count, 4, generator=generator_of(*stream), dtype=torch.float64).tolist()
