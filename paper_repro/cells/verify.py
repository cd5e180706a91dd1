"""Compares what today's code computes with a published record: the first training losses, or the metrics of a task
that trains nothing.

A training is begun anew with its full schedule and stopped after the first points of the record's loss curve.  The
beginning is compared because rounding errors, which differ between processors, grow with every step.
"""

import contextlib
import math
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from paper_repro.base import identity
from paper_repro.base.errors import UsageError
from paper_repro.cells import records
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED, Cell, FirstSteps, Outcome, StopRequestedError, loss_point, task_of

REPRODUCES = "reproduces"
DIFFERS = "differs"
NOT_VERIFIED = "not verified"
TRAINING_TOLERANCE = 1e-4
"""The largest relative difference of a point of the loss curve; a record keeps six digits."""
ROUNDING_TOLERANCE = TRAINING_TOLERANCE / 10
"""The largest relative difference between float32 and float64 of a point that is compared."""
METRIC_TOLERANCE = 1e-6
"""The largest relative difference of a metric that is computed without training, in float32 perhaps."""
COUNT_TOLERANCE = 1e-9
"""The same where both values are whole numbers."""
FEWEST_STEPS = 10
"""How many steps are trained at least."""
MOST_SECONDS = 60
"""A task that trains nothing is run whole where its record says that this took no longer."""
LOSS_CURVES = ("training_loss", "train_loss")
"""What records call the curve of the training losses: today, and before evaluations had curves of their own."""


@dataclass(frozen=True)
class Verification:
    """What the comparison of one cell gave."""

    verdict: str
    compared: str = ""
    """What was held against the record, for example "30 steps in 1 point"."""
    difference: float | None = None
    """The largest relative difference; None where nothing was compared."""
    why: str = ""
    """Why the cell differs where no number says it, or why it was not verified."""


def verify(cell: PlannedCell, published: Path) -> Verification:
    """Run the beginning of a cell, or all of one that trains nothing, and compare it with its record below a folder."""
    if cell.missing:
        return Verification(NOT_VERIFIED, why=cell.missing)
    record = records.find(published, cell.id)
    if record is None and cell.settings in _settings(published):
        files = ", ".join(sorted(identity.files_of(cell.config).values()))
        return Verification(NOT_VERIFIED, why=f"other data: the published cell has read another {files}")
    if record is None:
        return Verification(DIFFERS, why=f"its config has changed: no published record has its id, {cell.id}")
    if identity.is_timed(cell.config):
        return Verification(NOT_VERIFIED, why="it measures time")
    curve = _loss_curve(record)
    if curve is None and record.seconds > MOST_SECONDS:
        return Verification(NOT_VERIFIED, why=f"its record has no loss curve, and it took {record.seconds:.0f} s")
    try:
        return _compare_metrics(cell, record) if curve is None else _compare_losses(cell, curve)
    except UsageError as error:
        return Verification(NOT_VERIFIED if str(error).startswith("needs ") else DIFFERS, why=str(error))
    except Exception as error:
        traceback.print_exc()
        return Verification(DIFFERS, why=f"it fails: {type(error).__name__}: {str(error).partition(chr(10))[0]}")


@cache
def _settings(published: Path) -> set[str]:
    """Return the settings of all published cells, whatever data files they have read."""
    return {identity.settings(record.config) for record in records.every(published)}


def _run(cell: PlannedCell, steps: int | None) -> tuple[Outcome | None, list[float]]:
    """Run a cell anew, alone and with its full schedule, in a folder of its own that is deleted afterwards.

    Returns its outcome, None if it was stopped after ``steps``, and the losses that it has reported until then.
    """
    report, outcome = FirstSteps(steps), None
    with tempfile.TemporaryDirectory() as folder:
        machine = {
            **cell.machine,
            "cache": str(Path(folder) / "cache"),
            "progress_every_seconds": 0,  # every step is reported
            "compile": False,  # the full schedule is begun, and a few steps of it are made
        }
        local = Cell(cell.id, {**cell.config, identity.MACHINE: machine})
        try:
            with contextlib.suppress(StopRequestedError):
                (outcome,) = task_of(cell.config).run([local], Path(folder), report)
        except SystemExit as end:  # how Lightning ends a training when the user presses Ctrl-C
            raise KeyboardInterrupt from end
    return outcome, report.losses


def _loss_curve(record: Record) -> list[tuple[int, float]] | None:
    """Return the points of a record's loss curve; None where it has none."""
    for name in LOSS_CURVES:
        curve = record.curves.get(name, {})
        if curve.get("step"):
            return [(int(step), value) for step, value in zip(curve["step"], curve["value"], strict=True)]
    return None


def _compare_losses(cell: PlannedCell, curve: Sequence[tuple[int, float]]) -> Verification:
    """Compare the first points of a loss curve, as many as hold ``FEWEST_STEPS`` steps.

    Some trainings are chaotic: a rounding error becomes large within a few steps.  So where a point differs, the cell
    is trained in float64, too, and what is compared ends before the first point that this alone changes.
    """
    count = next((index for index, (end, _) in enumerate(curve, 1) if end >= FEWEST_STEPS), len(curve))
    first, length = curve[:count], int(cell.config["training"]["steps"])
    last = first[-1][0]
    _, losses = _run(cell, last)
    if len(losses) < last:
        return Verification(DIFFERS, why=f"its training ended after step {len(losses)}, before step {last}")
    differences = [_relative(_mean(losses, end, length), value) for end, value in first]
    if max(differences) > TRAINING_TOLERANCE:
        # The weights start from the same numbers.
        training = {**cell.config["training"], "precision": "64-true"}
        _, exact = _run(replace(cell, config={**cell.config, "training": training}), last)
        rounding = [_relative(_mean(losses, end, length), _mean(exact, end, length)) for end, _ in first]
        count = next((index for index, error in enumerate(rounding) if error > ROUNDING_TOLERANCE), count)
    if not count:
        return Verification(NOT_VERIFIED, why=f"rounding alone changes its first losses by {rounding[0]:.1e}")
    compared = f"{first[count - 1][0]} steps in {count} point{'s' if count > 1 else ''}"
    difference = max(differences[:count])
    return Verification(REPRODUCES if difference <= TRAINING_TOLERANCE else DIFFERS, compared, difference)


def _mean(losses: Sequence[float], end: int, length: int) -> float:
    """Return the mean loss of the point of the curve whose last step is ``end``, counted from 1."""
    own = [loss for step, loss in enumerate(losses[:end]) if loss_point(step, length) == loss_point(end - 1, length)]
    return sum(own) / len(own)


def _compare_metrics(cell: PlannedCell, record: Record) -> Verification:
    """Compare each metric of a record, but for those that this machine lacks something for."""
    outcome, _ = _run(cell, None)
    assert outcome is not None
    if outcome.status != FINISHED:
        return Verification(DIFFERS, why=f"it is {outcome.status}: {outcome.note}")
    common = [name for name in record.metrics if name in outcome.metrics]
    lost = [name for name in record.metrics if name not in outcome.metrics and name not in outcome.unavailable]
    if lost:
        return Verification(DIFFERS, why=f"it gives no {', '.join(lost)}")
    if not common:
        return Verification(NOT_VERIFIED, why="; ".join(sorted(set(outcome.unavailable.values()))))
    pairs = [(float(outcome.metrics[name]), float(record.metrics[name])) for name in common]
    differences = [_relative(*pair) for pair in pairs]
    tolerances = [COUNT_TOLERANCE if all(map(float.is_integer, pair)) else METRIC_TOLERANCE for pair in pairs]
    agree = all(difference <= most for difference, most in zip(differences, tolerances, strict=True))
    compared = f"{len(common)} of {len(record.metrics)} metrics"
    return Verification(REPRODUCES if agree else DIFFERS, compared, max(differences))


def _relative(found: float, expected: float) -> float:
    """Return the relative difference of two numbers; infinity where one is no number."""
    if found == expected:
        return 0.0
    difference = abs(found - expected) / abs(expected) if expected else math.inf
    return math.inf if math.isnan(difference) else difference
