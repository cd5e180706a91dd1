"""An artifact joined with its records: all that a table, a figure or a claim may read."""

import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from paper_repro.base import config as configs
from paper_repro.base import identity
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.files import CorruptFileError, read_regular
from paper_repro.cells import changes, measurements, records
from paper_repro.cells.planned import Key, PlannedCell
from paper_repro.cells.records import LIMIT_BYTES, Record, record_path
from paper_repro.cells.tasks import DIVERGED, FINISHED, NOT_FINITE
from paper_repro.tables.baselines import MeasuredBaseline, PlannedBaseline, is_better
from paper_repro.tables.claims import Place
from paper_repro.tables.plan import Plan
from paper_repro.tables.spec import Artifact, Column, Metric, Number

NOT_RUN = "not run"
_TABLE_BYTES = 10_000_000
"""Above the size of any table that is published."""
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors of a damaged or missing file whose content is read unchecked."""
_log = logging.getLogger(__name__)


def gain(before: float, after: float) -> float:
    """Return by how many percent the perplexity falls from one loss to another, both in nats per token."""
    return 100 * (1 - math.exp(after - before))


FUNCTIONS: dict[str, Callable[..., float]] = {
    "exp": math.exp,
    "log": math.log,
    "complement": lambda share: 1 - share,
    "difference": lambda one, other: one - other,
    "ratio": lambda one, other: one / other,
    "gain": gain,
}


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
    """None if ``own_root`` is the committed reference itself."""
    baselines: tuple[MeasuredBaseline, ...] = ()
    changed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The user's cells that come from other code or data than there is now, each with the files that differ."""
    read: dict[tuple[Key, str | None], None] | None = None
    """The places that were read, each with its metric (None: files or records); None: nothing is noted."""

    @property
    def artifact(self) -> Artifact:
        return self.plan.artifact

    @property
    def scale_name(self) -> str:
        return self.plan.scale_name

    @property
    def own_root_is_reference(self) -> bool:
        return self.reference_root is None

    @cached_property
    def has_own(self) -> bool:
        """Whether verdicts are on the user's own records; else, with none of them, on the reference."""
        return any(point.own for point in self.points.values())

    @cached_property
    def has_reference(self) -> bool:
        """Whether there is a committed record of any model."""
        return any(point.reference for point in self.points.values())

    def noting(self) -> tuple["View", dict[tuple[Key, str | None], None]]:
        """Return the view that notes which places are read, and its notes."""
        noted: dict[tuple[Key, str | None], None] = {}
        return replace(self, read=noted), noted

    def unwatched(self) -> "View":
        """Return the view that notes nothing, for choosing: of ten rates the best is judged, not the others."""
        return replace(self, read=None) if self.read is not None else self

    def _note(self, key: Key, name: str | None) -> None:
        if self.read is not None:
            self.read[key, name] = None

    def point(self, place: Mapping[str, str]) -> Point:
        key = tuple((axis, place[axis]) for axis in self.artifact.axes)
        return self.points.get(key) or Point(key, {}, {}, {})

    def covers(self, place: Mapping[str, str]) -> bool:
        """Return whether the scale has a point at a (partial) place."""
        return any(place.items() <= dict(key).items() for key in self.points)

    def _judged(self, point: Point) -> dict[int, Record]:
        return point.own if self.has_own else point.reference

    def judged(self, point: Point) -> dict[int, Record]:
        """Return a point's records by seed: the user's, or those of the reference where the user has none at all."""
        self._note(point.key, None)
        return self._judged(point)

    def results(self, key: Key) -> dict[int, Record]:
        """Return the judged records at a full place, by seed."""
        return self._judged(self.points[key]) if key in self.points else {}

    def samples(self, name: str, place: Mapping[str, str]) -> dict[int, float]:
        """Return a metric by seed, of the finished cells at a place; none where the scale has no such place."""
        point = self.point(place)
        self._note(point.key, name)
        return values(self._judged(point), name)

    def counted(self, name: str, place: Mapping[str, str]) -> float | None:
        """Return a column's value at a place, which is the same for all seeds."""
        point = self.point(place)
        return column_value(self.artifact, self.artifact.columns[name], point, self._judged(point))

    def lost(self, name: str | None, place: Mapping[str, str]) -> list[int]:
        """Return the seeds at a place that diverged, or whose metric is not finite."""
        return [
            seed
            for seed, record in sorted(self._judged(self.point(place)).items())
            if record.status == DIVERGED or (name is not None and record.unavailable.get(name) == NOT_FINITE)
        ]

    def absence(self, name: str, place: Mapping[str, str]) -> str:
        """Return why there are no samples: "not run", or why the metric is not available."""
        return lack(self._judged(self.point(place)), name) or self.unnamed.get(name) or NOT_RUN

    def attachments(self, name: str, place: Mapping[str, str]) -> dict[int, bytes]:
        """Return the files of that name of the finished cells at a place, by seed; a damaged file counts as absent."""
        point = self.point(place)
        self._note(point.key, None)
        root = self.own_root if self.has_own or self.reference_root is None else self.reference_root
        found = {seed: _attachment(root, record, name) for seed, record in self._judged(point).items()}
        return {seed: content for seed, content in found.items() if content is not None}

    def baseline_attachment(self, baseline: str, name: str, seed: int) -> bytes | None:
        """Return a file of a baseline's cell; None where there is none, or it is damaged."""
        for one in self.baselines:
            if one.plan.name == baseline and (record := one.found.get(seed)) is not None:
                own = seed in one.own or self.reference_root is None
                content = _attachment(self.own_root if own else self.reference_root or self.own_root, record, name)
                if content is not None:
                    return content
        return None

    def printed(self, key: Key, name: str) -> Number | None:
        return self.artifact.printed(key, name)

    def is_beaten(self, key: Key, name: str) -> bool | None:
        """Return whether a model beats each baseline of a metric; None where there is none to compare."""
        found = values(self.results(key), name)
        bounds = [one for one in self.baselines if key in one.plan.keys and name in one.bounded(name)]
        pairs = [(samples, one.spec.direction) for one in bounds if found and (samples := one.samples(name))]
        return all(is_better(found, samples, direction) for samples, direction in pairs) if pairs else None

    @cached_property
    def unnamed(self) -> dict[str, str]:
        """The metrics that none of the user's cells has, mostly slips in a name, each with why.

        Empty while a place has no finished cell or a probe has not measured.
        """
        if self.own_root_is_reference or not self.has_own:
            return {}
        places = [
            [(cell, one) for seed, cell in p.cells.items() if (one := p.own.get(seed)) and one.status == FINISHED]
            for p in self.points.values()
        ]
        pairs = [pair for own in places for pair in own]
        if not all(places) or not all(c.probes.keys() <= identity.probes(r.config).keys() for c, r in pairs):
            return {}
        known = {name for _, record in pairs for name in (*record.metrics, *record.unavailable)}
        measured = {name: metric for name, metric in self.artifact.metrics.items() if metric.measured}
        slips = {name: next(_slips(name, metric, known), "") for name, metric in measured.items() if name not in known}
        return {name: why for name, why in slips.items() if why}

    def unknown_metric(self, names: Iterable[str | None]) -> str:
        """Return one of the metrics that were read, if no record has any of them; else nothing."""
        finished = [r for point in self.points.values() for r in self._judged(point).values() if r.status == FINISHED]
        known = {*self.artifact.metrics}.union(*({*record.metrics, *record.unavailable} for record in finished))
        wanted = {name for name in names if name is not None}
        if not finished or not wanted or wanted & known:
            return ""
        return f"metric '{min(wanted)}', which no record has{nearest(min(wanted), known)}"


def _slips(name: str, metric: Metric, known: set[str]) -> Iterator[str]:
    if not metric.derived:
        yield f"no metric of that name{nearest(name, known)}"
    for source in (source for sources in metric.derived.values() for source in sources):
        if known.isdisjoint(source.split(" or ")):
            yield f"no metric {source}{nearest(source, known)}"


def _attachment(root: Path, record: Record, name: str) -> bytes | None:
    if record.status != FINISHED:
        return None
    try:
        return records.attachment(root, record, name)
    except CorruptFileError as error:
        _log.warning("%s", error)
        return None


def build(plan: Plan, own: Path, reference: Path | None) -> View:
    """Read the records of a plan's cells; a damaged record counts as absent.

    Where data is missing or differs from the reference's, so that ids differ, the reference is found by its settings.
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
    measured = tuple(_measured(one, plan, own, reference, committed) for one in plan.baselines)
    changed = {} if reference is None else changes.changed(own, plan.all_cells)
    return View(plan, points, own, reference, measured, changed)


def _measured(
    one: PlannedBaseline, plan: Plan, own: Path, reference: Path | None, committed: "Committed"
) -> MeasuredBaseline:
    known = {seed: record for seed, cell in one.cells.items() if (record := committed.find(cell)) is not None}
    if reference is None:
        return MeasuredBaseline(one, known, {}, plan.seeds)
    users = ((seed, result_of(own, cell, plan.artifact)) for seed, cell in one.cells.items())
    return MeasuredBaseline(one, {seed: record for seed, record in users if record is not None}, known, plan.seeds)


@dataclass
class Committed:
    """Records of the reference, found by id or by settings."""

    root: Path
    plan: Plan

    def find(self, cell: PlannedCell) -> Record | None:
        artifact = self.plan.artifact
        record = None if cell.missing else result_of(self.root, cell, artifact)
        if record is not None or not (cell.missing or cell.id != cell.settings):
            return record
        for other in self._alike(cell.settings):
            if (record := result_of(self.root, replace(cell, id=other), artifact)) is not None:
                return record
        return None

    def _alike(self, settings: str) -> Iterator[str]:
        """Yield the ids of records with these settings; those of the published table first: to read all takes long."""
        yield from self._published.get(settings, ())
        yield from self._all.get(settings, ())

    @cached_property
    def _published(self) -> dict[str, list[str]]:
        with contextlib.suppress(*_UNREADABLE):
            table = json.loads(read_regular(self.root / self.plan.folder / "table.json", _TABLE_BYTES))
            return self._by_settings(table["cells"])
        return {}

    @cached_property
    def _all(self) -> dict[str, list[str]]:
        paths = (self.root / "cells").glob("*/record.json")
        return self._by_settings(sorted((path.parent.name for path in paths), reverse=True))

    def _by_settings(self, ids: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for cell in ids:
            with contextlib.suppress(*_UNREADABLE):
                config = json.loads(read_regular(record_path(self.root, cell), LIMIT_BYTES))["config"]
                found.setdefault(identity.settings(config), []).append(cell)
        return found


def result_of(root: Path, cell: PlannedCell, artifact: Artifact) -> Record | None:
    """Return a cell's record with the metrics of its probes and those that follow from others."""
    found = measurements.find(root, cell)
    return None if found is None else with_derived(found.record, artifact.metrics)


def with_derived(record: Record, metrics: Mapping[str, Metric]) -> Record:
    """Add each derived metric to a record that follows from what it has measured.

    A metric that the record holds stays.  One that is not finite is not available and says so; one whose sources are
    not available is not available for their reason.
    """
    if record.status != FINISHED:
        return record
    found, lacking = dict(record.metrics), dict(record.unavailable)
    for name, metric in metrics.items():
        if not metric.derived or name in found:
            continue
        ((function, sources),) = metric.derived.items()
        names = [source.split(" or ") for source in sources]
        given = [next((found[one] for one in each if one in found), None) for each in names]
        if None in given:
            if (reason := next((lacking[one] for each in names for one in each if one in lacking), None)) is not None:
                lacking[name] = reason
            continue
        try:
            value = FUNCTIONS[function](*given)
        except (ValueError, OverflowError, ZeroDivisionError):
            value = math.nan
        if math.isfinite(value):
            found[name] = value
        else:
            lacking[name] = NOT_FINITE
    if len(found) == len(record.metrics) and len(lacking) == len(record.unavailable):
        return record
    return replace(record, metrics=found, unavailable=lacking)


def values(found: Mapping[int, Record], name: str) -> dict[int, float]:
    """Return a metric by seed, of the finished records."""
    return {
        seed: record.metrics[name]
        for seed, record in found.items()
        if record.status == FINISHED and name in record.metrics
    }


def lack(found: Mapping[int, Record], name: str) -> str:
    """Return why a metric is not available, as far as the first colon ("n/a: needs gpt2"); empty if it is."""
    reasons = [record.unavailable[name] for record in found.values() if name in record.unavailable]
    return f"n/a: {reasons[0].partition(':')[0]}" if reasons else ""


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


__all__ = ["Place", "Point", "View", "build", "gain", "values"]
