"""Losses measured while training goes on, and the weights at which one of them was lowest."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, nearest
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.training.journal import Silent
from paper_repro.training.module import PaperModule
from paper_repro.training.sharding import whole

Context = Callable[[], AbstractContextManager[Any]]


class Evaluations:
    """Evaluates S models every so many steps and at the end, and keeps for each the weights of its best evaluation.

    Args:
        every: optimiser steps between evaluations; None: only the last one.
        keep: the metric whose lowest value decides which weights are kept, for example "val_loss"; None: the last ones.
        context: what a forward pass is computed under (autocast).
        batches: of each split, that the evaluations of the curves take; None: all.  The metrics at the end are whole.
        journal: is told every point of the curves; None: nobody is.

    Raises:
        UsageError: ``keep`` is not a metric of a module.
    """

    def __init__(
        self,
        modules: Sequence[PaperModule],
        data: Sequence[CounterBasedDataModule],
        every: int | None,
        keep: str | None,
        context: Context,
        batches: int | None = None,
        journal: Silent | None = None,
    ) -> None:
        self.modules, self.data, self.journal = [*modules], data, journal or Silent()
        self.every, self.keep, self.context, self.batches = every, keep, context, batches
        for module, one in zip(modules, data, strict=True):
            _check_keep(keep, [f"{split}_{name}" for split in one.splits for name in module.new_metrics()])
        self._curves: list[dict[str, list[list[float]]]] = [{} for _ in modules]
        self._best: list[dict[str, float]] = [{} for _ in modules]
        self._weights: list[dict[str, Tensor]] = [{} for _ in modules]

    def due(self, step: int, steps: int) -> bool:
        """Return whether to evaluate after ``step`` of ``steps``; the last step is evaluated by ``finish``."""
        return self.every is not None and step % self.every == 0 and step < steps

    def after(self, step: int) -> list[dict[str, float]]:
        """Evaluate every model after ``step`` optimiser steps, and return the metrics of each."""
        found = [self._evaluated(index, self.batches) for index in range(len(self.modules))]
        for index, metrics in enumerate(found):
            self._account(index, step, metrics)
        return found

    def finish(self, index: int, step: int) -> dict[str, float]:
        """Evaluate one model on all batches after the last step, and put the weights that are kept into its module.

        Returns every metric, with ``best_<name>`` for each of them and ``best_step`` where weights are kept by one.
        A metric that was never finite keeps the last weights.
        """
        metrics = self._evaluated(index, None)
        # A curve's points are comparable: the last one, too, is of the batches of those before.
        shorter = self.every is not None and self.batches is not None
        self._account(index, step, self._evaluated(index, self.batches) if shorter else metrics)
        if not self._best[index]:
            return metrics
        self._load(index)
        best = dict(self._best[index])
        return {**metrics, "best_step": best.pop("step"), **{f"best_{name}": value for name, value in best.items()}}

    def curves(self, index: int) -> dict[str, list[tuple[int, float]]]:
        """Return (steps done, value) of each metric of one model; empty unless it was evaluated while training."""
        if self.every is None:
            return {}
        return {name: [(int(step), value) for step, value in points] for name, points in self._curves[index].items()}

    def state_dict(self) -> dict[str, Any]:
        weights = [{name: whole(tensor) for name, tensor in one.items()} for one in self._weights]
        return {"curves": self._curves, "best": self._best, "weights": weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._curves, self._best, self._weights = state["curves"], state["best"], state["weights"]

    def _evaluated(self, index: int, batches: int | None) -> dict[str, float]:
        module, data = self.modules[index], self.data[index]
        data.setup("test")
        with self.context():
            return module.evaluate(data, batches)

    def _account(self, index: int, step: int, metrics: dict[str, float]) -> None:
        self.journal.evaluated(index, step, metrics)
        for name, value in metrics.items():
            self._curves[index].setdefault(name, []).append([float(step), value])
        if self.keep is None:
            return
        value = metrics[self.keep]
        if math.isfinite(value) and value < self._best[index].get(self.keep, math.inf):
            self._best[index] = {"step": float(step), **metrics}
            state = self.modules[index].state_dict()
            self._weights[index] = {name: tensor.detach().clone() for name, tensor in state.items()}

    def _load(self, index: int) -> None:
        with torch.no_grad():
            for name, tensor in self.modules[index].state_dict().items():
                tensor.copy_(whole(self._weights[index][name]))


def _check_keep(keep: str | None, known: Sequence[str]) -> None:
    if keep is not None and keep not in known:
        raise UsageError(f"training.keep={keep!r}: not a metric of this module{nearest(keep, known)}")
