"""What happens beside the steps of a training: the loss curve, checkpoints and stops, evaluations, and loggers."""

import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from torch import Tensor

from paper_repro.base import identity
from paper_repro.base.errors import UsageError, nearest
from paper_repro.cells.planned import CSV, FOLDER, TENSORBOARD
from paper_repro.cells.tasks import LOSS_POINTS, Report, StopRequestedError, loss_point
from paper_repro.training.build import BuiltCell
from paper_repro.training.machine import Machine, Rank

SHARE_OF_SAVING = 0.05
"""The largest part of the time that checkpoints by the clock may take."""
LOSS = "training_loss"
PROJECT = "paper-repro"
"""The project at Weights & Biases, where WANDB_PROJECT names no other."""
_GO, _SAVE, _END, _STOP = range(4)
Context = Callable[[], AbstractContextManager[Any]]


class LossLog:
    """Mean losses over each hundredth of a run of ``steps`` steps and the first non-finite loss, for S models at once.

    Adding a step does not wait for the device.  ``end`` is the last step, earlier where a callback ended the run.
    """

    def __init__(self, models: int, steps: int, device: torch.device) -> None:
        self.steps = self.end = steps
        self.points = min(LOSS_POINTS, steps)
        self.latest = torch.full((models,), torch.nan, device=device)
        self._sums = torch.zeros(self.points, models, dtype=torch.float64, device=device)
        self._first_bad = torch.full((models,), -1, dtype=torch.int64, device=device)

    def add(self, step: int, losses: Tensor) -> None:
        """Keep the losses, (S,), of step ``step`` (0-based)."""
        self.latest = losses
        self._sums[loss_point(step, self.steps)] += losses
        bad = ~torch.isfinite(losses) & (self._first_bad < 0)
        self._first_bad.masked_fill_(bad, step)

    def diverged(self) -> list[int | None]:
        """Return, for each model, the first step (0-based) with a non-finite loss; waits for the device."""
        return [step if step >= 0 else None for step in self._first_bad.tolist()]

    def curve(self, model: int) -> list[tuple[int, float]]:
        """Return (steps done, mean loss since the point before) of one model, up to where it diverged."""
        first_bad = int(self._first_bad[model])
        last = first_bad if first_bad >= 0 else self.end
        edges = itertools.pairwise(-(-point * self.steps // self.points) for point in range(self.points + 1))
        sums = zip(edges, self._sums[:, model].tolist(), strict=True)
        return [(end, total / (end - start)) for (start, end), total in sums if end <= last]

    def state_dict(self) -> dict[str, Tensor]:
        return {"sums": self._sums, "first_bad": self._first_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums.copy_(state["sums"])
        self._first_bad.copy_(state["first_bad"])


class Watch:
    """Keeps the loss log, reports, has checkpoints saved when they are due, and ends a run that has to end.

    Rank 0 has ``report`` and ``journal``; after every step it tells the other ranks what it decides.  ``save`` writes a
    checkpoint after so many steps.
    """

    def __init__(
        self,
        log: LossLog,
        machine: Machine,
        report: Report | None,
        save: Callable[[int], None],
        journal: "Journal | None" = None,
        rank: Rank | None = None,
    ) -> None:
        self.log, self.machine, self.save, self.journal = log, machine, save, journal or Journal()
        self.report: Any = report
        self.rank = rank or Rank()
        self._earlier_seconds = self._saving_seconds = 0.0
        self._started = self._reported = self._saved_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds, those of the interrupted runs before this one included."""
        return self._earlier_seconds + time.monotonic() - self._started

    def after_step(self, step: int) -> bool:
        """Account for the last of ``step`` steps, whose losses are in the log; return False once all have diverged."""
        word = self.rank.share(_GO if self.rank.index else self._decide(step))
        self._obey(word, step)
        if word != _END and step == self.log.steps and self.rank.index == 0:
            self._tell(step)  # from then on a request to stop ends the process
        return word != _END

    def stop_if_requested(self, step: int) -> None:
        """If the user wants to stop, save a checkpoint and raise StopRequestedError."""
        stops = self.rank.index == 0 and self.report.stop_requested
        self._obey(self.rank.share(_STOP if stops else _GO), step)

    def _decide(self, step: int) -> int:
        """Return what all ranks do after a step."""
        self.report.saves = True
        now, last = time.monotonic(), step == self.log.steps
        self.journal.after_step(step, self.log.latest)
        if last or now - self._reported >= self.machine.progress_every_seconds:
            over = None not in self.log.diverged()
            if over or not last:
                self._tell(step)
            if over:
                return _END
        if self.report.stop_requested:
            return _STOP
        return _SAVE if last or self._due(step, now) else _GO

    def _obey(self, word: int, step: int) -> None:
        if word in (_SAVE, _STOP) and step > 0:
            self.journal.flush()
            started = time.monotonic()
            self.save(step)
            self._saved_at = time.monotonic()
            self._saving_seconds = self._saved_at - started
        if word == _STOP:
            raise StopRequestedError(f"stopped after step {step} of {self.log.steps}")

    def _tell(self, step: int) -> None:
        self._reported = time.monotonic()
        self.journal.flush()
        finite = self.log.latest[torch.isfinite(self.log.latest)]
        self.report.progress(step, self.log.steps, float(finite.double().mean()))  # NaN if none is finite

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.log.state_dict(), "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.log.load_state_dict(state["losses"])
        self._earlier_seconds = float(state["seconds"])

    def _due(self, step: int, now: float) -> bool:
        steps, seconds = self.machine.checkpoint_every_steps, self.machine.checkpoint_every_seconds
        if steps and step % steps == 0:
            return True
        return bool(seconds) and now - self._saved_at >= max(seconds or 0.0, self._saving_seconds / SHARE_OF_SAVING)


class Evaluations:
    """Evaluates the models of S cells under ``context`` (autocast), and keeps the weights of the best evaluation."""

    def __init__(self, built: Sequence[BuiltCell], context: Context, journal: "Journal | None" = None) -> None:
        self.modules, self.data = [one.module for one in built], [one.data for one in built]
        self.context, self.journal, training = context, journal or Journal(), built[0].training
        self.every, self.keep, self.batches = training.evaluate_every, training.keep, training.evaluation_batches
        for module, data in zip(self.modules, self.data, strict=True):
            known = [f"{split}_{name}" for split in data.splits for name in module.new_metrics()]
            if self.keep is not None and self.keep not in known:
                raise UsageError(f"training.keep={self.keep!r}: not a metric of this module{nearest(self.keep, known)}")
        self._curves: list[dict[str, list[list[float]]]] = [{} for _ in built]
        self._best: list[dict[str, float]] = [{} for _ in built]
        self._weights: list[dict[str, Tensor]] = [{} for _ in built]

    def due(self, step: int, steps: int) -> bool:
        """Return whether to evaluate after ``step`` of ``steps``; the last step is evaluated by ``finish``."""
        return self.every is not None and step % self.every == 0 and step < steps

    def after(self, step: int) -> list[dict[str, float]]:
        """Evaluate every model, and return the metrics of each."""
        found = [self._evaluated(index, self.batches) for index in range(len(self.modules))]
        for index, metrics in enumerate(found):
            self._account(index, step, metrics)
        return found

    def finish(self, index: int, step: int) -> dict[str, float]:
        """Evaluate one model on all batches after the last step, and put the weights that are kept into its module.

        Where weights are kept by a metric, ``best_<name>`` of each and ``best_step`` are returned, too.
        """
        metrics = self._evaluated(index, None)
        # A curve's points are comparable: the last one, too, is of the batches of those before.
        shorter = self.every is not None and self.batches is not None
        self._account(index, step, self._evaluated(index, self.batches) if shorter else metrics)
        if not self._best[index]:
            return metrics
        with torch.no_grad():
            for name, tensor in self.modules[index].state_dict().items():
                tensor.copy_(self._weights[index][name])
        best = dict(self._best[index])
        return {**metrics, "best_step": best.pop("step"), **{f"best_{name}": value for name, value in best.items()}}

    def curves(self, index: int) -> dict[str, list[tuple[int, float]]]:
        """Return (steps done, value) of each metric of one model; empty unless it was evaluated while training."""
        if self.every is None:
            return {}
        return {name: [(int(step), value) for step, value in points] for name, points in self._curves[index].items()}

    def state_dict(self) -> dict[str, Any]:
        return {"curves": self._curves, "best": self._best, "weights": self._weights}

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


class Journal:
    """Writes losses and evaluations of S cells, while they train, to a logger of each, which ``machine.logger`` names.

    A loss is written every ``machine.log_every_steps`` steps, and after the last.  Without cells nothing is written.
    """

    def __init__(self, built: Sequence[BuiltCell] = (), folder: Path = Path()) -> None:
        self.built, kind = built, built[0].machine.logger if built else None
        self.loggers = [_logger(kind, one, folder) for one in built] if kind else []

    def after_step(self, step: int, losses: Tensor) -> None:
        """Write the losses, (S,), of the step that made the number of steps done ``step``."""
        if self.loggers and (step == self.built[0].training.steps or step % self.built[0].machine.log_every_steps == 0):
            for logger, value in zip(self.loggers, losses.tolist(), strict=True):  # waits for the device
                logger.log_metrics({LOSS: value}, step)

    def evaluated(self, index: int, step: int, metrics: dict[str, float]) -> None:
        if self.loggers:
            self.loggers[index].log_metrics(metrics, step)

    def flush(self) -> None:
        for logger in self.loggers:
            logger.save()

    def close(self) -> None:
        for logger in self.loggers:
            logger.finalize("success")
            if isinstance(logger, WandbLogger):
                logger.experiment.finish()


def _logger(kind: str, built: BuiltCell, folder: Path) -> Logger:
    """Open a cell's logger in logs/ of its folder, with a version of its own for each start of the training."""
    home = Path(built.machine.log_folder or folder / built.cell.id)
    if kind == CSV:
        return CSVLogger(home, name=FOLDER)
    if kind == TENSORBOARD:
        return TensorBoardLogger(home, name=FOLDER, default_hp_metric=False)
    (home / FOLDER).mkdir(parents=True, exist_ok=True)
    return WandbLogger(
        name=built.cell.id,
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        save_dir=home / FOLDER,
        config=identity.recorded(built.cell.config),
        reinit="create_new",  # the runs of a stack are open side by side
    )
