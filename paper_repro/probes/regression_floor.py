"""Regression without a network: the mean of the targets, or a linear map; a task that trains nothing.

Letters: N points, K inputs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, one_of
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task
from paper_repro.datamodules.counter_based import CounterBasedDataModule, data_of

Predict = Callable[[Tensor], Tensor]
"""Targets (N,) of inputs (N, K)."""


def mean(inputs: Tensor, targets: Tensor) -> Predict:
    """Return the mean of the training targets (N,) everywhere."""
    center = targets.mean()
    return lambda others: center.expand(len(others))


def linear(inputs: Tensor, targets: Tensor) -> Predict:
    """Fit the targets (N,) by least squares to the inputs (N, K) and a constant."""
    weights = torch.linalg.lstsq(_with_one(inputs), targets[:, None]).solution[:, 0]  # (K + 1,)
    return lambda others: _with_one(others) @ weights


RULES: dict[str, Callable[[Tensor, Tensor], Predict]] = {"mean": mean, "linear": linear}


class RegressionFloor(Task):
    """Measures a rule that needs no network, under the names of a trained model's metrics.

    Metrics: ``<split>_rmse`` of each split, in the units of the targets; all training points are fitted, in float64.

    Args:
        rule: "mean" or "linear".

    Raises:
        ValueError: an unknown rule.
    """

    def __init__(self, rule: str = "mean") -> None:
        self.rule = RULES[one_of("rule", rule, RULES)]

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [self._outcome(data_of(cell.config)) for cell in cells]

    def _outcome(self, data: CounterBasedDataModule) -> Outcome:
        if not _is_pair(data.example_batch()):
            raise UsageError(
                f"RegressionFloor takes inputs (B, K) and targets (B,), the data are {type(data).__name__}"
            )
        points = {split: _whole(data, split) for split in data.splits}
        predict = self.rule(*points["train"])
        metrics = {
            f"{split}_rmse": float((predict(inputs) - targets).square().mean().sqrt())
            for split, (inputs, targets) in points.items()
        }
        return Outcome(FINISHED, metrics=metrics, data_hashes=data.data_hashes())


def _is_pair(batch: Any) -> bool:
    pair = isinstance(batch, tuple) and len(batch) == 2 and all(isinstance(one, Tensor) for one in batch)
    return pair and (batch[0].ndim, batch[1].ndim) == (2, 1) and len(batch[0]) == len(batch[1])


def _whole(data: CounterBasedDataModule, split: str) -> tuple[Tensor, Tensor]:
    """Return all inputs (N, K) and targets (N,) of a split."""
    inputs, targets = zip(*data.evaluation_batches(split), strict=True)
    return torch.cat(inputs).double(), torch.cat(targets).double()


def _with_one(inputs: Tensor) -> Tensor:
    """Return inputs (N, K) with a one behind each, (N, K + 1)."""
    return torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
