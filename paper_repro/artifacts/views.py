"""An artifact joined with its records: all that a table, a figure or a claim may read."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from paper_repro.artifacts import looks, verdicts
from paper_repro.artifacts.artifact import Artifact, Column, Number
from paper_repro.artifacts.committed import Committed, result_of
from paper_repro.artifacts.floors import MeasuredFloor, PlannedFloor, first_below, shortfall
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.judgements import UNDECIDED, Judgement
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.unnamed import unnamed
from paper_repro.base import config as configs
from paper_repro.base import identity
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.files import CorruptFileError
from paper_repro.cells import changes, records
from paper_repro.cells.planned import Key, PlannedCell
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import DIVERGED, FINISHED, NOT_FINITE

_log = logging.getLogger(__name__)


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
    own_root: Path
    reference_root: Path | None
    """None if ``own_root`` is the committed reference itself (there is nothing to hold it against but the paper)."""
    floors: tuple[MeasuredFloor, ...] = ()
    changed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The user's cells that come from other code or data than there is now, each with the files that differ."""

    @property
    def own_root_is_reference(self) -> bool:
        return self.reference_root is None

    @cached_property
    def has_reference(self) -> bool:
        """Whether there is a committed record of any model to hold the user's own against."""
        return any(point.reference for point in self.points.values())

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

    @cached_property
    def unnamed(self) -> dict[str, str]:
        """The metrics that none of the user's cells has, each with why.

        Empty while a place has no finished cell or a probe has not measured: the metric may be theirs.  The reference
        may be older than a metric.
        """
        if self.own_root_is_reference or not self.judges_own:
            return {}
        places = [
            [
                (cell, one)
                for seed, cell in point.cells.items()
                if (one := point.own.get(seed)) and one.status == FINISHED
            ]
            for point in self.points.values()
        ]
        pairs = [pair for own in places for pair in own]
        measured = all(cell.probes.keys() <= identity.probes(record.config).keys() for cell, record in pairs)
        if not all(places) or not measured:
            return {}
        return unnamed(self.artifact.metrics, (record for _, record in pairs))

    @property
    def judged_seeds(self) -> str:
        most = max((len(point.cells) for point in self.points.values()), default=0)
        further = f", and up to {most} seeds where a claim asked for more" if most > len(self.plan.seeds) else ""
        return ", ".join(str(seed) for seed in self.plan.seeds) + further

    @property
    def unfinished_looks(self) -> dict[int, list[Point]]:
        """By number of seeds, the points that were begun for a look and lack some of them."""
        most: dict[Key, int] = {}
        for cell in self.plan.cells:
            most[cell.key] = most.get(cell.key, 0) + 1
        found: dict[int, list[Point]] = {}
        for key, point in self.points.items():
            if self.plan.has_looks and most.get(key, 0) > len(point.cells):
                found.setdefault(most[key], []).append(point)
        return dict(sorted(found.items()))

    def judged(self, point: Point) -> dict[int, Record]:
        return self._judged(point)

    def _judged(self, point: Point) -> dict[int, Record]:
        return point.own if self.judges_own else point.reference

    def results(self, key: Key) -> dict[int, Record]:
        """Return the judged records at a full place, by seed."""
        return self._judged(self.points[key]) if key in self.points else {}

    def witness(self) -> "Witness":
        """Return the same view, which notes what is read of it."""
        return Witness(
            self.plan, self.points, self.own_root, self.reference_root, self.floors, self.changed, plain=self
        )

    def unwatched(self) -> "View":
        """Return the view that notes nothing, to choose with: of ten rates, say, the best is judged, not the others."""
        return self

    def without_floors(self) -> "View":
        """Return the same view, of which nothing is held against a floor."""
        return replace(self, floors=())

    def unknown_metric(self) -> str:
        """Return a metric that was read, where neither the artifact nor any finished record has one of those read; else
        nothing: a claim may ask for more metrics than one scale has.

        A plain view notes nothing, and so knows of none.
        """
        return ""

    @cached_property
    def shortfalls(self) -> dict[tuple[Key, str | None], Judgement | None]:
        """What was found out about models and their floors, see ``Witness``."""
        return {}

    def point(self, place: Mapping[str, str]) -> Point:
        key = tuple((axis, place[axis]) for axis in self.artifact.axes)
        return self.points.get(key) or Point(key, {}, {}, {})

    def covers(self, place: Mapping[str, str]) -> bool:
        """Return whether the scale has a point at a (partial) place."""
        return any(place.items() <= dict(key).items() for key in self.points)

    def samples(self, name: str, place: Mapping[str, str]) -> dict[int, float]:
        """Return a metric by seed, of the finished cells at a place; none where the scale has no such place."""
        return values(self._judged(self.point(place)), name)

    def lost(self, name: str | None, place: Mapping[str, str]) -> list[int]:
        """Return the seeds at a place that diverged, or whose metric is no number.

        The mean over the other seeds says nothing of a model that loses some.
        """
        return [
            seed
            for seed, record in sorted(self._judged(self.point(place)).items())
            if record.status == DIVERGED or (name is not None and record.unavailable.get(name) == NOT_FINITE)
        ]

    def absence(self, name: str, place: Mapping[str, str]) -> str:
        """Return why there are no samples: "not run", what the metric lacks, "n/a: needs gpt2", or that there is no
        such metric.
        """
        return verdicts.lack(self._judged(self.point(place)), name) or self.unnamed.get(name) or verdicts.NOT_RUN

    def counted(self, name: str, place: Mapping[str, str]) -> float | None:
        """Return a column's value at a place (the same for all seeds)."""
        return column_value(
            self.artifact, self.artifact.columns[name], self.point(place), self._judged(self.point(place))
        )

    def attachments(self, name: str, place: Mapping[str, str]) -> dict[int, bytes]:
        """Return what the finished cells at a place left under that name, by seed; a damaged file counts as absent."""
        root = self.own_root if self.judges_own or self.reference_root is None else self.reference_root
        found = {}
        for seed, record in self._judged(self.point(place)).items():
            if record.status != FINISHED:
                continue
            try:
                content = records.attachment(root, record, name)
            except CorruptFileError as error:
                _log.warning("%s", error)
                continue
            if content is not None:
                found[seed] = content
        return found

    def floor_attachment(self, floor: str, name: str, seed: int) -> bytes | None:
        """Return what a floor's cell left under a name; None where there is none, or the file is damaged."""
        for one in self.floors:
            record = one.found.get(seed) if one.plan.name == floor else None
            if record is None or record.status != FINISHED:
                continue
            root = self.own_root if seed in one.own or self.reference_root is None else self.reference_root
            try:
                return records.attachment(root, record, name)
            except CorruptFileError as error:
                _log.warning("%s", error)
        return None

    def printed(self, key: Key, name: str) -> Number | None:
        return self.artifact.printed(key, name)


@dataclass(frozen=True)
class Witness(View):
    """A view that notes of which models a predicate reads samples, files or records."""

    plain: View | None = None
    noted: dict[tuple[Key, str | None], None] = field(default_factory=dict)
    """The places, each with the metric that was read; None for files and records."""

    def samples(self, name: str, place: Mapping[str, str]) -> dict[int, float]:
        self.noted[self.point(place).key, name] = None
        return super().samples(name, place)

    def attachments(self, name: str, place: Mapping[str, str]) -> dict[int, bytes]:
        self.noted[self.point(place).key, None] = None
        return super().attachments(name, place)

    def judged(self, point: Point) -> dict[int, Record]:
        self.noted[point.key, None] = None
        return super().judged(point)

    def counted(self, name: str, place: Mapping[str, str]) -> float | None:
        return self.unwatched().counted(name, place)

    def _judged(self, point: Point) -> dict[int, Record]:
        return self.unwatched()._judged(point)  # whoever counts reads, counts these, too

    def lost(self, name: str | None, place: Mapping[str, str]) -> list[int]:
        return self.unwatched().lost(name, place)

    def unwatched(self) -> View:
        assert self.plain is not None
        return self.plain.unwatched()

    def without_floors(self) -> View:
        return self.unwatched().without_floors()

    def unknown_metric(self) -> str:
        read = [point.own if self.judges_own else point.reference for point in self.points.values()]  # without a note
        finished = [record for found in read for record in found.values() if record.status == FINISHED]
        known = {*self.artifact.metrics}.union(*({*record.metrics, *record.unavailable} for record in finished))
        wanted = {name for _, name in self.noted if name is not None}
        if not finished or not wanted or wanted & known:
            return ""
        return f"metric '{min(wanted)}', which no record has{nearest(min(wanted), known)}"

    def lost_seeds(self) -> Judgement | None:
        """Return which of the models that were read lost some of their seeds, and not all; None if none did."""
        plain = self.unwatched()
        for key, name in self.noted:
            lost, count = plain.lost(name, dict(key)), len(plain.results(key))
            if 0 < len(lost) < count:
                at = ", ".join(self.artifact.axes[axis].values[value].label for axis, value in key)
                return Judgement(UNDECIDED, f"{len(lost)} of {count} seeds of {at} diverged")
        return None

    def shortfall(self) -> Judgement | None:
        """Return why what was read decides nothing: the first model that is not better than its floor; None if all are.

        A floor that is missing is told only where no model is below one.
        """
        known = self.unwatched().shortfalls
        for read in self.noted:
            if read not in known:
                known[read] = shortfall(self, *read)
        found = [one for read in self.noted if (one := known[read]) is not None]
        below = first_below([one for one in found if one.verdict == NOT_JUDGED])
        return below or next(iter(found), None)


def build(plan: Plan, own: Path, reference: Path | None) -> View:
    """Read the records of a plan's cells.

    A damaged record counts as absent.  Where data is missing or another than the reference was made from, so that a
    cell's id is not the reference's, the reference is found by its settings.  Of a look that was begun and is not
    finished no record is read.
    """
    points: dict[Key, Point] = {}
    committed = Committed(own if reference is None else reference, plan)
    for cell in plan.cells:
        point = points.setdefault(cell.key, Point(cell.key, {}, {}, {}))
        point.cells[cell.seed] = cell
        record = committed.find(cell)
        if record is not None and reference is not None:
            point.reference[cell.seed] = record
        if reference is not None:
            record = result_of(own, cell, plan.artifact)
        if record is not None:
            point.own[cell.seed] = record
    if plan.has_looks:
        points = {key: _of_finished_looks(plan, point) for key, point in points.items()}
    floors = tuple(_measured(floor, plan, own, reference, committed) for floor in plan.floors)
    changed = {} if reference is None else changes.changed(own, plan.all_cells)
    return View(plan, points, own, reference, floors, changed)


def _of_finished_looks(plan: Plan, point: Point) -> Point:
    def kept(found: dict[int, Record]) -> dict[int, Record]:
        seeds = looks.finished(plan.scale.looks, plan.scale.seeds, found)
        return {seed: record for seed, record in found.items() if seed in seeds}

    own, reference = kept(point.own), kept(point.reference)
    seeds = {*plan.seeds, *own, *reference}
    return Point(point.key, {seed: cell for seed, cell in point.cells.items() if seed in seeds}, own, reference)


def _measured(
    floor: PlannedFloor, plan: Plan, own: Path, reference: Path | None, committed: Committed
) -> MeasuredFloor:
    known = {seed: record for seed, cell in floor.cells.items() if (record := committed.find(cell)) is not None}
    if reference is None:
        return MeasuredFloor(floor, known, {}, plan.seeds)
    users = ((seed, result_of(own, cell, plan.artifact)) for seed, cell in floor.cells.items())
    return MeasuredFloor(floor, {seed: record for seed, record in users if record is not None}, known, plan.seeds)


def values(found: Mapping[int, Record], name: str) -> dict[int, float]:
    """Return a metric by seed, of the finished records."""
    return {
        seed: record.metrics[name]
        for seed, record in found.items()
        if record.status == FINISHED and name in record.metrics
    }


def column_value(artifact: Artifact, column: Column, point: Point, found: Mapping[int, Record]) -> float | None:
    """Return parameters or multiply-adds from a record, or a number from an axis or the config; None if there is none.

    Raises:
        UsageError: the config has no number there, and ``only`` does not leave the point out.
    """
    if not column.is_at(point.key):
        return None
    if column.axis is not None:
        return artifact.axes[column.axis].values[dict(point.key)[column.axis]].number
    if column.source in ("parameters", "multiply_adds"):
        counted = {getattr(record, column.source) for record in found.values() if record.status in (FINISHED, DIVERGED)}
        counted.discard(None)
        return float(counted.pop()) if len(counted) == 1 else None
    if not point.cells:
        return None
    cell = next(iter(point.cells.values()))
    for key in column.sources:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return float(configs.lookup(cell.config, key))
    raise UsageError(f"column '{column.title}': the config has no number under '{column.source}' at {dict(point.key)}")
