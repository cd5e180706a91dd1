"""What a run tells while it trains: lines in log.txt, and points in a CSV file, TensorBoard or Weights & Biases.

The points go through Lightning's own loggers, one for each cell, in ``logs/`` of the cell's folder.  A run that is
resumed after step N keeps the points up to N and writes those after it again, so that none is lost and none is there
twice.  Nothing of this enters a result.
"""

import csv
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from torch import Tensor

from paper_repro.base import identity
from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import CSV, FOLDER, TENSORBOARD, WANDB
from paper_repro.cells.tasks import loss_point
from paper_repro.training.build import BuiltCell

LOG = "log.txt"
LOSS = "training_loss"
_EVENTS = "events.out.tfevents."
PROJECT = "paper-repro"
"""The project at Weights & Biases, where WANDB_PROJECT names no other."""
_TABLE, _TABLE_BEFORE, _RUN = "metrics.csv", "metrics.before.csv", "wandb-run.txt"


class Silent:
    """The journal of a process that tells nothing: a rank other than 0."""

    loggers: Sequence[Logger] = ()

    def begin(self, step: int) -> None:
        """Say that training begins after ``step`` optimiser steps: 0, or those of the checkpoint."""

    def after_step(self, step: int, losses: Tensor, seconds: float) -> None:
        """Tell the losses, (S,), of the step that made the number of steps done ``step``."""

    def evaluated(self, index: int, step: int, metrics: Mapping[str, float]) -> None:
        """Tell what an evaluation of one cell gave."""

    def flush(self) -> None:
        """Have everything on the disk that was told; called before each checkpoint."""


class Journal(Silent):
    """The journal of a run of S cells.

    log.txt has a line for each hundredth of the run; ``machine.logger`` gets a point every
    ``machine.log_every_steps`` steps, and one of the last.  A point is the loss of that step, a mean over its batches.

    Args:
        folder: of the run: log.txt lies there, and where ``machine.log_folder`` names none, the cells' own folders.
    """

    def __init__(self, built: Sequence[BuiltCell], folder: Path) -> None:
        self.built, self.folder = built, folder
        self.steps, machine = built[0].training.steps, built[0].machine
        self.every = machine.log_every_steps if machine.logger else None
        self._points: list[_Points] = []

    def begin(self, step: int) -> None:
        names = " ".join(one.cell.id for one in self.built)
        self._line(f"{'from the start' if step == 0 else f'on from step {step}'}, {self.steps} steps: {names}")
        for one in self.built if self.every else ():
            folder = Path(one.machine.log_folder or self.folder / one.cell.id) / FOLDER
            folder.mkdir(parents=True, exist_ok=True)
            self._points.append(_OPEN[one.machine.logger](one, folder, step))
        self.loggers = [points.logger for points in self._points]

    def after_step(self, step: int, losses: Tensor, seconds: float) -> None:
        last = step == self.steps
        line = last or loss_point(step, self.steps) != loss_point(step - 1, self.steps)
        point = bool(self._points) and (last or step % (self.every or 1) == 0)
        if not line and not point:
            return
        values = losses.tolist()  # waits for the device
        if line:
            shown = " ".join(f"{value:.6g}" for value in values)
            self._line(f"step {step} of {self.steps}, {seconds:.1f} s, {LOSS} {shown}")
        for points, value in zip(self._points, values, strict=True) if point else ():
            points.add(step, {LOSS: value})

    def evaluated(self, index: int, step: int, metrics: Mapping[str, float]) -> None:
        shown = " ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        which = f" of {self.built[index].cell.id}" if len(self.built) > 1 else ""
        self._line(f"step {step} of {self.steps}, evaluation{which}: {shown}")
        if self._points:
            self._points[index].add(step, metrics)

    def flush(self) -> None:
        for points in self._points:
            points.logger.save()

    def close(self) -> None:
        """End the loggers; what was told is on the disk, or sent."""
        while self._points:
            self._points.pop().close()
        if self.built[0].machine.logger == WANDB and "wandb" in sys.modules:
            sys.modules["wandb"].teardown()  # waits for its process, which writes on after a run has ended

    def _line(self, text: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOG).open("a", encoding="utf-8") as stream:
            stream.write(f"{text}\n")


@contextmanager
def kept(built: Sequence[BuiltCell], folder: Path) -> Iterator[Journal]:
    """Keep the journal of a run, and close it however the run ends."""
    journal = Journal(built, folder)
    try:
        yield journal
    finally:
        journal.close()


@dataclass
class _Points:
    """One cell's points in one logger of Lightning's."""

    logger: Logger
    step: int
    """The step of the checkpoint from which the run goes on; 0 at the start."""
    known: frozenset[str]
    """The names of its points that are there already: a run that ended after its last checkpoint evaluates anew."""
    end: Callable[[], object] | None = None

    def add(self, step: int, values: Mapping[str, float]) -> None:
        new = {name: value for name, value in values.items() if step != self.step or name not in self.known}
        if new:
            self.logger.log_metrics(new, step)

    def close(self) -> None:
        self.logger.save()
        if self.end is not None:
            self.end()


def _csv(built: BuiltCell, folder: Path, step: int) -> _Points:
    """Open metrics.csv.  Lightning's logger begins with an empty file: the rows that are kept are written once more."""
    table, before = folder / _TABLE, folder / _TABLE_BEFORE
    if not before.exists() and table.exists():
        table.replace(before)  # a process that was killed before the new file was whole finds the old one here
    rows = [row for row in _rows(before) if row[0] <= step] if step else []
    table.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*exists and is not empty.*")
        logger = CSVLogger(folder, name="", version="")
        # The whole header at once: a file is rewritten, and might be lost half-way, where a column is added later.
        logger.experiment.metrics_keys = sorted(["step", *_names(built)])
    for found, values in rows:
        logger.log_metrics({**values}, found)
    logger.save()
    before.unlink(missing_ok=True)
    return _Points(logger, step, frozenset(name for found, row in rows if found == step for name in row))


def _rows(path: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the rows of a table of points, each a step and its values; one that was cut off is left out."""
    if not path.is_file():
        return []
    lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    found = []
    for row in csv.DictReader(lines):
        values = {name: float(text) for name, text in row.items() if name != "step" and text}
        found.append((int(row["step"]), values))
    return found


def _tensorboard(built: BuiltCell, folder: Path, step: int) -> _Points:
    """Open an event file.  ``purge_step`` makes readers leave out earlier points from that step on."""
    if step == 0:
        for path in folder.glob(f"{_EVENTS}*"):
            path.unlink()
    _number_events(folder)
    known = _scalars_at(folder, step) if step == built.training.steps else frozenset[str]()
    logger = TensorBoardLogger(
        folder, name="", version="", default_hp_metric=False, purge_step=step + 1 if step else None, flush_secs=10
    )
    return _Points(logger, step, known, logger.experiment.close)


def _number_events(folder: Path) -> None:
    """Number the event files that are there: they are read in the order of their names, and a name holds the second and
    the pid, of which neither needs to rise from one run to the next.
    """
    for number, path in enumerate(sorted(folder.glob(f"{_EVENTS}*"))):
        head = f"{_EVENTS}{number:010d}."
        if not path.name.startswith(head):
            path.rename(path.with_name(head + path.name.removeprefix(_EVENTS)))


def _scalars_at(folder: Path, step: int) -> frozenset[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = found.Tags()["scalars"]
    return frozenset(tag for tag in tags if any(event.step == step for event in found.Scalars(tag)))


def _wandb(built: BuiltCell, folder: Path, step: int) -> _Points:
    """Open a run of Weights & Biases, that of before where training goes on.  Cells of a stack have one each."""
    import wandb

    name = folder / _RUN
    if step == 0 or not name.is_file():
        name.write_text(f"{built.cell.id}-{secrets.token_hex(3)}", encoding="utf-8")
    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=name.read_text(encoding="utf-8").strip(),
            name=built.cell.id,
            dir=folder,
            config=identity.recorded(built.cell.config),
            resume="allow",
            reinit="create_new",  # the runs of a stack are open side by side
            settings=wandb.Settings(silent=True, console="off"),
        )
    except wandb.errors.Error as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"machine.logger=wandb: {text}; run `wandb login`, or set WANDB_MODE=offline to keep the run here"
        ) from error
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return _Points(WandbLogger(experiment=run), step, frozenset(), run.finish)


def _names(built: BuiltCell) -> list[str]:
    """Return the names of all points that a run may tell."""
    return [LOSS, *(f"{split}_{name}" for split in built.data.splits for name in built.module.new_metrics())]


_OPEN: dict[str | None, Callable[[BuiltCell, Path, int], _Points]] = {
    CSV: _csv,
    TENSORBOARD: _tensorboard,
    WANDB: _wandb,
}
