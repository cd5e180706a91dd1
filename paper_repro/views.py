"""An artifact joined with its records: all that a table, a figure or a claim may read."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paper_repro import config as configs
from paper_repro import records
from paper_repro.artifacts import Artifact, Column, Key, Number
from paper_repro.errors import UsageError
from paper_repro.plan import Plan, PlannedCell
from paper_repro.records import Record
from paper_repro.tasks import DIVERGED, FINISHED


@dataclass(frozen=True)
class Point:
    """One row of the artifact: a place on its axes, with the records of its seeds."""

    key: Key
    cells: dict[int, PlannedCell]
    own: dict[int, Record]
    reference: dict[int, Record]


@dataclass(frozen=True)
class View:
    """A plan and the records that exist for it, in the user's runs folder and in the committed reference."""

    plan: Plan
    points: dict[Key, Point]
    own_root_is_reference: bool
    """Whether this is the committed reference itself (then there is nothing to hold it against but the paper)."""

    @property
    def artifact(self) -> Artifact:
        return self.plan.artifact

    @property
    def scale_name(self) -> str:
        return self.plan.scale_name

    @cached_property
    def judges_own(self) -> bool:
        """Whether the verdicts are on the user's own records (else, with none of them, on the reference)."""
        return any(point.own for point in self.points.values())

    @property
    def judged_seeds(self) -> str:
        return ", ".join(str(seed) for seed in self.plan.seeds)

    def judged(self, point: Point) -> dict[int, Record]:
        return point.own if self.judges_own else point.reference

    def point(self, place: Mapping[str, str]) -> Point:
        key = tuple((axis, place[axis]) for axis in self.artifact.axes)
        return self.points[key]

    def samples(self, name: str, place: Mapping[str, str]) -> dict[int, float]:
        """A metric by seed, of the finished cells at a place."""
        return values(self.judged(self.point(place)), name)

    def counted(self, name: str, place: Mapping[str, str]) -> float | None:
        """A column's value at a place (the same for all seeds)."""
        return column_value(self.artifact.columns[name], self.point(place), self.judged(self.point(place)))

    def printed(self, key: Key, name: str) -> Number | None:
        return self.artifact.printed(key, name)


def build(plan: Plan, own: Path, reference: Path | None) -> View:
    """Read the records of a plan's cells.

    A damaged record counts as absent.  Where data is missing, so that a cell's id cannot be computed, the reference is
    found by its recipe.
    """
    points: dict[Key, Point] = {}
    for cell in plan.cells:
        point = points.setdefault(cell.key, Point(cell.key, {}, {}, {}))
        point.cells[cell.seed] = cell
        if (record := records.find(own, cell.id)) is not None:
            point.own[cell.seed] = record
        if reference is not None and (record := _reference(reference, cell)) is not None:
            point.reference[cell.seed] = record
    return View(plan, points, own_root_is_reference=reference is None)


def values(found: Mapping[int, Record], name: str) -> dict[int, float]:
    """A metric by seed, of the finished records."""
    return {
        seed: record.metrics[name]
        for seed, record in found.items()
        if record.status == FINISHED and name in record.metrics
    }


def column_value(column: Column, point: Point, found: Mapping[int, Record]) -> float | None:
    """Parameters or multiply-adds from a record, or a number from the config."""
    if column.source in ("parameters", "multiply_adds"):
        counted = {getattr(record, column.source) for record in found.values() if record.status in (FINISHED, DIVERGED)}
        counted.discard(None)
        return float(counted.pop()) if len(counted) == 1 else None
    cell = next(iter(point.cells.values()))
    try:
        return float(configs.lookup(cell.config, column.source))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"column '{column.title}': the config has no number under '{column.source}' at {dict(point.key)}"
        ) from error


def _reference(root: Path, cell: PlannedCell) -> Record | None:
    if not cell.missing:
        return records.find(root, cell.id)
    for path in sorted((root / "cells").glob("*/record.json")):
        record = records.find(root, path.parent.name)
        if record is not None and record.recipe == cell.recipe:
            return record
    return None
