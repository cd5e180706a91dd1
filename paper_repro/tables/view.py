"""An artifact joined with its records: all that a table, a figure or a claim may read."""

import csv
import functools
import io
import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paper_repro.base import configs, identity
from paper_repro.base.configs import TARGET
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.files import CorruptFileError, read_regular
from paper_repro.cells import measurements, records
from paper_repro.cells.planned import Key, PlannedCell
from paper_repro.cells.records import LIMIT_BYTES, Record, record_path
from paper_repro.cells.tasks import DIVERGED, FINISHED, NOT_FINITE
from paper_repro.tables import stats
from paper_repro.tables.plan import Plan, PlannedBaseline
from paper_repro.tables.spec import DERIVED, EXACT, METRICS, MODEL, PAPERS, Artifact, Column, Metric, place_problems
from paper_repro.tables.stats import Interval, Samples

NOT_RUN = "not run"
_TABLE_BYTES = 10_000_000
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors of a damaged or missing file whose content is read unchecked."""
_log = logging.getLogger(__name__)
Notes = dict[tuple[Key, str | None], None]
"""The places that were read, each with its metric (None: files or records)."""


@dataclass(frozen=True)
class Point:
    """One row of the artifact: a place on its axes, with the records of its seeds."""

    key: Key
    cells: dict[int, PlannedCell]
    own: dict[int, Record]
    reference: dict[int, Record]


@dataclass(frozen=True)
class MeasuredBaseline(PlannedBaseline):
    """A planned baseline with the records of its seeds."""

    own: dict[int, Record]
    reference: dict[int, Record]
    seeds: tuple[int, ...]

    @property
    def found(self) -> dict[int, Record]:
        """The records; the user's own replace the reference's, because the same id is the same data."""
        return {**self.reference, **self.own}

    def samples(self, metric: str, found: Mapping[int, Record] | None = None) -> dict[int, float]:
        """Return the baseline's value of a metric of the artifact by seed, from all records or from those given."""
        if metric in self.spec.values:
            return dict.fromkeys(self.seeds, self.spec.values[metric])
        return values(self.found if found is None else found, self.spec.metrics.get(metric, metric))

    def lack(self, metric: str) -> str:
        if not self.found:
            return next((cell.missing for cell in self.cells.values() if cell.missing), NOT_RUN)
        name = self.spec.metrics.get(metric, metric)
        return trouble(self.found) or lack(self.found, name) or f"it has not measured {name}"

    def bounded(self, metric: str | None) -> list[str]:
        """Return the metrics in which a model must be better where ``metric`` is read (None: its files)."""
        if self.spec.judges == MODEL:
            return list(self.spec.metrics)
        return [metric] if self.spec.judges == METRICS and metric in self.spec.metrics else []


def values(found: Mapping[int, Record], name: str) -> dict[int, float]:
    """Return a metric by seed, of the finished records."""
    return {
        seed: record.metrics[name]
        for seed, record in found.items()
        if record.status == FINISHED and name in record.metrics
    }


def difference(model: Samples, baseline: Samples) -> Interval:
    """Return the interval of a model's mean less its baseline's: paired where the baseline has all seeds of the model.

    Else a baseline that is the same in all of its seeds is a number, and with one that varies the interval is Welch's.
    """
    first, *others = {*baseline.values()}
    if not others and not model.keys() <= baseline.keys():
        baseline = dict.fromkeys(model, first)
    if model.keys() <= baseline.keys():
        return stats.of([value - baseline[seed] for seed, value in model.items()])
    return stats.welch(list(model.values()), list(baseline.values()))


def is_better(model: Samples, baseline: Samples, direction: str) -> bool:
    """Return whether the whole interval of the difference is on the better side; with one seed, the difference."""
    found = difference(model, baseline)
    sign = -1 if direction == "lower" else 1
    if len(model) < 2:
        return sign * found.mean > 0
    return min(sign * found.low, sign * found.high) > 0


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
    read: Notes | None = None
    """None: nothing is noted."""

    @property
    def artifact(self) -> Artifact:
        return self.plan.artifact

    @property
    def own_root_is_reference(self) -> bool:
        return self.reference_root is None

    @cached_property
    def has_own(self) -> bool:
        """Whether verdicts are on the user's own records, not on the reference."""
        return any(point.own for point in self.points.values())

    def unwatched(self) -> "View":
        """Return the view that notes nothing: of ten rates only the best is judged."""
        return replace(self, read=None) if self.read is not None else self

    def point(self, place: Mapping[str, str]) -> Point:
        key = tuple((axis, place[axis]) for axis in self.artifact.axes)
        if key in self.points:
            return self.points[key]
        for problem in place_problems(self.artifact.axes, dict(key)):
            raise UsageError(problem)
        return Point(key, {}, {}, {})

    def places(self, **fixed: str) -> list[dict[str, str]]:
        """Return the places of the scale with those axis values."""
        return [place for place in map(dict, self.points) if fixed.items() <= place.items()]

    def chosen(self, axis: str) -> list[str]:
        """Return the values of an axis that the scale runs, in the artifact's order."""
        found = {place[axis] for place in self.places()}
        return [value for value in self.artifact.axes[axis].values if value in found]

    def label(self, axis: str, value: str) -> str:
        return self.artifact.axes[axis].values[value].label

    def results(self, point: Point) -> dict[int, Record]:
        """Return a point's records by seed: the user's, or those of the reference where the user has none at all."""
        return point.own if self.has_own else point.reference

    def judged(self, point: Point, name: str | None = None) -> dict[int, Record]:
        """Return ``results``, noted as read for a metric, or for files and records."""
        if self.read is not None:
            self.read[point.key, name] = None
        return self.results(point)

    def samples(self, name: str, place: Mapping[str, str]) -> dict[int, float]:
        """Return a metric by seed, of the finished cells at a place; none where the scale has no such place."""
        return values(self.judged(self.point(place), name), name)

    def only(self, name: str, place: Mapping[str, str]) -> float | None:
        """Return a metric that every seed has alike, such as a count; None where nothing has run."""
        return next(iter(self.samples(name, place).values()), None)

    def counted(self, name: str, place: Mapping[str, str]) -> float | None:
        """Return a column's value at a place, which is the same for all seeds."""
        point = self.point(place)
        return column_value(self.artifact, self.artifact.columns[name], point, self.results(point))

    def best(self, place: Mapping[str, str], axis: str, metric: str) -> str:
        """Return the value of an axis with the best mean of a metric, over the seeds that all of its values have.

        A value at which a seed diverged is no candidate.  Where none has run it is the first value of the scale.
        """
        plain, places = self.unwatched(), self.places(**place)
        found = {one[axis]: plain.samples(metric, one) for one in places if not plain.lost(metric, one)}
        found = {value: samples for value, samples in found.items() if samples}
        seeds = set.intersection(*map(set, found.values())) if found else set()
        sign = -1 if self.artifact.metrics[metric].direction == "higher" else 1
        means = {value: sign * sum(samples[seed] for seed in seeds) for value, samples in found.items()}
        return min(means, key=means.__getitem__) if seeds else places[0][axis]

    def lost(self, name: str | None, place: Mapping[str, str]) -> list[int]:
        """Return the seeds at a place that diverged, or whose metric is not finite."""
        return [
            seed
            for seed, record in sorted(self.results(self.point(place)).items())
            if record.status == DIVERGED or (name is not None and record.unavailable.get(name) == NOT_FINITE)
        ]

    def absence(self, name: str, place: Mapping[str, str]) -> str:
        """Return why there are no samples: "not run", or why the metric is not available."""
        return lack(self.results(self.point(place)), name) or self.unnamed.get(name) or NOT_RUN

    def attachments(self, name: str, place: Mapping[str, str]) -> dict[int, bytes]:
        """Return the files of that name of the finished cells at a place, by seed; a damaged file counts as absent."""
        judged = self.judged(self.point(place))
        found = {seed: self._attachment(record, name, self.has_own) for seed, record in judged.items()}
        return {seed: content for seed, content in found.items() if content is not None}

    def tables(self, name: str, place: Mapping[str, str]) -> dict[int, list[dict[str, str]]]:
        """Return the rows of the CSV files of that name at a place, by seed in ascending order."""
        found = sorted(self.attachments(name, place).items())
        return {seed: list(csv.DictReader(io.StringIO(content.decode()))) for seed, content in found}

    def baseline_attachment(self, baseline: str, name: str, seed: int) -> bytes | None:
        """Return a file of a baseline's cell; None where there is none, or it is damaged."""
        found = [one for one in self.baselines if one.name == baseline and seed in one.found]
        contents = (self._attachment(one.found[seed], name, seed in one.own) for one in found)
        return next((content for content in contents if content is not None), None)

    def _attachment(self, record: Record, name: str, is_own: bool) -> bytes | None:
        root = self.own_root if is_own or self.reference_root is None else self.reference_root
        try:
            return records.attachment(root, record, name) if record.status == FINISHED else None
        except CorruptFileError as error:
            _log.warning("%s", error)
            return None

    def is_beaten(self, key: Key, name: str) -> bool | None:
        """Return whether a model beats each baseline of a metric; None where there is none to compare."""
        found = values(self.results(self.points[key]), name)
        bounds = [one for one in self.baselines if key in one.keys and name in one.bounded(name)]
        pairs = [(samples, one.spec.direction) for one in bounds if found and (samples := one.samples(name))]
        return all(is_better(found, samples, direction) for samples, direction in pairs) if pairs else None

    def shortfall(self, key: Key, metric: str | None) -> tuple[bool, str] | None:
        """Return whether the model at a place does not beat a baseline of a metric (None: of its files), and why it
        supports no claim; None if it beats them all.
        """
        found, absent = self.results(self.point(dict(key))), None
        for one in self.baselines:
            for name in one.bounded(metric) if key in one.keys else ():
                own, bound = values(found, name), one.samples(name)
                if own and not bound:
                    absent = absent or (False, f"no baseline: {one.spec.label}: {one.lack(name)}")
                elif own and not is_better(own, bound, one.spec.direction):
                    spec = self.artifact.metrics[name]
                    numbers = [spec.text(stats.mean(list(side.values())) / spec.factor) for side in (own, bound)]
                    where = f"{self.artifact.label(key)}: {spec.title} {numbers[0]}"
                    return True, f"{where}, {one.spec.label} {numbers[1]}"
        return absent

    @cached_property
    def unnamed(self) -> dict[str, str]:
        """The metrics that no cell of the user has, each with why, once every place has measured what it is asked."""
        places = [
            [(p.cells[seed].config, one) for seed, one in p.own.items() if one.status == FINISHED]
            for p in self.points.values()
        ]
        pairs = [pair for own in places for pair in own]
        measured = all(identity.probes(config).keys() <= identity.probes(one.config).keys() for config, one in pairs)
        if self.own_root_is_reference or not all(places) or not measured:
            return {}
        known = {name for _, record in pairs for name in (*record.metrics, *record.unavailable)}
        lacking = [name for name, spec in self.artifact.metrics.items() if spec.measured and name not in known]
        return {name: f"no metric of that name{nearest(name, known)}" for name in lacking}


def build(plan: Plan, own: Path, reference: Path | None) -> View:
    """Read the records of a plan's cells; a damaged record counts as absent.

    Where data is missing or differs from the reference's, so that ids differ, the reference is found by its settings.
    """
    root, artifact = own if reference is None else reference, plan.artifact
    published = functools.cache(lambda: _published(root, plan))

    def committed(cell: PlannedCell) -> Record | None:
        record = None if cell.missing else result_of(root, cell, artifact)
        if record is None and (cell.missing or cell.id != cell.settings):
            ids = published().get(cell.settings, ())
            record = next(filter(None, (result_of(root, replace(cell, id=one), artifact) for one in ids)), None)
        return record

    def read(cells: Mapping[int, PlannedCell]) -> tuple[dict[int, Record], dict[int, Record]]:
        """Return the user's records and those of the reference, by seed."""
        known = {seed: record for seed, cell in cells.items() if (record := committed(cell)) is not None}
        if reference is None:
            return known, {}
        users = ((seed, result_of(own, cell, artifact)) for seed, cell in cells.items())
        return {seed: record for seed, record in users if record is not None}, known

    by_key: dict[Key, dict[int, PlannedCell]] = {}
    for cell in plan.cells:
        by_key.setdefault(cell.key, {})[cell.seed] = cell
    points = {key: Point(key, cells, *read(cells)) for key, cells in by_key.items()}
    measured = tuple(
        MeasuredBaseline(one.name, one.spec, one.keys, one.cells, *read(one.cells), plan.seeds)
        for one in plan.baselines
    )
    changed = {} if reference is None else measurements.changed(own, plan.all_cells)
    return View(plan, points, own, reference, measured, changed)


def _published(root: Path, plan: Plan) -> dict[str, list[str]]:
    """Return the cells of the plan's published table by their settings, for readers with other data, or without any."""
    found: dict[str, list[str]] = {}
    with suppress(*_UNREADABLE):
        for cell in json.loads(read_regular(root / plan.folder / "table.json", _TABLE_BYTES))["cells"]:
            with suppress(*_UNREADABLE):
                config = json.loads(read_regular(record_path(root, cell), LIMIT_BYTES))["config"]
                found.setdefault(identity.settings(config), []).append(cell)
    return found


def result_of(root: Path, cell: PlannedCell, artifact: Artifact) -> Record | None:
    found = measurements.find(root, cell)
    return None if found is None else with_derived(found.record, artifact.metrics)


def with_derived(record: Record, metrics: Mapping[str, Metric]) -> Record:
    """Add to a record the derived metrics whose sources it has, or why they are not available."""
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
            value = DERIVED[function][0](*given)
        except (ValueError, OverflowError, ZeroDivisionError):
            value = math.nan
        if math.isfinite(value):
            found[name] = value
        else:
            lacking[name] = NOT_FINITE
    return replace(record, metrics=found, unavailable=lacking)


def trouble(found: Mapping[int, Record]) -> str:
    """Return what happened to the cells without a result, in words; empty if all finished."""
    return "; ".join(
        f"seed {seed} {record.status}" + (f": {record.note}" if record.note else "")
        for seed, record in sorted(found.items())
        if record.status != FINISHED
    )


def lack(found: Mapping[int, Record], name: str) -> str:
    """Return why a metric is not available, as far as the first colon ("n/a: needs gpt2"); empty if it is."""
    reasons = [record.unavailable[name] for record in found.values() if name in record.unavailable]
    return f"n/a: {reasons[0].partition(':')[0]}" if reasons else ""


def column_value(artifact: Artifact, column: Column, point: Point, found: Mapping[int, Record]) -> float | None:
    """Return parameters or multiply-adds from a record, or a number from an axis or the config."""
    if column.source in ("parameters", "multiply_adds"):
        counted = {getattr(record, column.source) for record in found.values() if record.status in (FINISHED, DIVERGED)}
        counted.discard(None)
        return float(counted.pop()) if len(counted) == 1 else None
    if not point.cells:
        return None
    cell = next(iter(point.cells.values()))
    for key in column.source.split(" or "):
        with suppress(KeyError, TypeError, ValueError):
            return float(configs.lookup(cell.config, key))
    raise UsageError(f"column '{column.title}': the config has no number under '{column.source}' at {dict(point.key)}")


def made_of(view: View) -> str:
    """Return data and size of the models: "ListOps, 1.8k to 61k parameters"."""
    return ", ".join(part for part in (data_of(view), size_of(view)) if part)


def data_of(view: View) -> str:
    if view.plan.scale_name == EXACT or view.plan.scale.data:
        return view.plan.scale.data or "arithmetic"
    found = dict.fromkeys(_data(cell.config) for point in view.points.values() for cell in point.cells.values())
    return " and ".join(word for word in found if word) or "made-up inputs"


@functools.cache
def _data_names() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = configs.read(PAPERS / "data_names.yaml").plain()
    return found


def _data(config: Mapping[str, Any]) -> str:
    names, data = _data_names(), config.get("data") or {}
    if manifest := (identity.reader_of(config).get(identity.FILES) or {}).get("manifest"):
        name = manifest.partition("/")[0]
        known = [folder for folder in names["folders"] if name == folder or name.startswith(f"{folder}-")]
        return names["folders"][max(known, key=len)] if known else name
    parts = (part for part in (data.get("source"), data) if isinstance(part, Mapping))
    classes = (str(part.get(TARGET, "")).rpartition(".")[2] for part in parts)
    return next((names["classes"][name] for name in classes if name in names["classes"]), "")


def size_of(view: View) -> str:
    """Return the fewest and the most parameters of the judged records' models; empty where none has any."""
    judged = [record for point in view.points.values() for record in view.judged(point).values()]
    counts = sorted(record.parameters for record in judged if record.parameters)
    ends = list(dict.fromkeys(count_text(count) for count in (*counts[:1], *counts[-1:])))
    return f"{' to '.join(ends)} parameters" if ends else ""


def count_text(count: float) -> str:
    """Write a count with two digits, or three above a hundred: 1,805 is 1.8k, 162,813,024 is 163M."""
    for unit, letter, least in ((1e9, "B", 1e9), (1e6, "M", 1e5), (1e3, "k", 1e3)):
        if count >= least:
            return f"{count / unit:.2g}{letter}" if count < 100 * unit else f"{count / unit:.0f}{letter}"
    return f"{count:.0f}"


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
