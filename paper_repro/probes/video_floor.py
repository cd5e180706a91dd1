"""The next frame without a network: the last one again, or a linear map of the last two; a task that trains nothing.

Letters: B windows, T frames, V numbers of a frame's state.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.base.errors import at_least, one_of
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report
from paper_repro.datamodules.videos import VideoData
from paper_repro.probes.floor_task import FloorTask

Predict = Callable[[Tensor], Tensor]
"""What follows each of some frames, (B, T, V) both."""
RIDGE = 1e-3
"""What is added to each square, as a share of the mean of the squares that a weight multiplies."""


def last_frame(data: VideoData, num_batches: int) -> Predict:
    """Return the last frame as the next one."""
    return lambda frames: frames


def linear(data: VideoData, num_batches: int) -> Predict:
    """Fit the next frame by least squares to the last two and a constant, on training windows.

    Before the first frame the first one is taken again.
    """
    gram: Tensor = torch.zeros(())
    right: Tensor = torch.zeros(())
    for step in range(num_batches):
        batch = data.train_batch(step).double()  # (B, T, V)
        known = _two_frames(batch[:, :-1]).flatten(0, 1)  # (B T, 2 V + 1)
        gram, right = gram + known.T @ known, right + known.T @ batch[:, 1:].flatten(0, 1)
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    weights = torch.linalg.solve(gram + ridge, right)  # (2 V + 1, V)
    return lambda frames: (_two_frames(frames.double()) @ weights).to(frames.dtype)


RULES: dict[str, Callable[[VideoData, int], Predict]] = {"last_frame": last_frame, "linear": linear}


class VideoFloor(FloorTask):
    """Measures a rule that needs no network, under the name of a trained model's metric.

    Metrics, for each split: ``<split>_loss``, Smooth L1 of the frames that follow.

    Args:
        rule: "last_frame" or "linear".
        num_batches: training batches that the linear map is fitted to.

    Raises:
        ValueError: an unknown rule, or no batch.
    """

    kinds = (VideoData,)
    takes = "takes windows of clips"

    def __init__(self, rule: str = "last_frame", num_batches: int = 64) -> None:
        self.rule, self.num_batches = one_of("rule", rule, RULES), at_least("num_batches", num_batches)

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        outcomes = []
        for cell in cells:
            data = self.data_of(cell.config)
            predict = RULES[self.rule](data, self.num_batches)
            metrics = {f"{split}_loss": _loss(predict, data, split) for split in data.splits}
            outcomes.append(Outcome(FINISHED, metrics=metrics, data_hashes=data.data_hashes()))
        return outcomes


def _loss(predict: Predict, data: VideoData, split: str) -> float:
    total, count = 0.0, 0
    for batch in data.evaluation_batches(split):
        error = functional.smooth_l1_loss(predict(batch[:, :-1]), batch[:, 1:])
        total, count = total + float(error) * len(batch), count + len(batch)
    return total / count


def _two_frames(frames: Tensor) -> Tensor:
    """Return each frame, the one before it and a one, (B, T, 2 V + 1), of frames (B, T, V)."""
    before = torch.cat([frames[:, :1], frames[:, :-1]], 1)
    return torch.cat([frames, before, torch.ones_like(frames[..., :1])], -1)
