"""Trivial baselines: what is reached without learning on the data of a model.

A baseline is a cell with the config of the artifact's scale, the models' data, and a task that trains nothing, which
artifacts on the same data share.  ``papers/baselines.yaml`` defines baselines, and an artifact names what they bound:
``baselines: {bigram: {metrics: [val_loss]}}``.  A model that does not beat its baseline is marked in the table.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paper_repro.base import configs
from paper_repro.base.configs import Node, Override, override_of
from paper_repro.base.errors import nearest
from paper_repro.cells.planned import Key, PlannedCell
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED
from paper_repro.tables import stats
from paper_repro.tables.axes import Axis, Overrides, place_problems, unknown
from paper_repro.tables.stats import Interval, Samples

LIST = Path(__file__).parents[1] / "papers" / "baselines.yaml"
DIRECTIONS = ("lower", "higher")
MODEL, METRICS, NOTHING = "model", "metrics", "nothing"
JUDGES = (MODEL, METRICS, NOTHING)
KEYS = ("label", "direction", "about", "task", "at_scale", "values", "judges", "metrics", "at")


@dataclass(frozen=True)
class Baseline:
    """A trivial baseline as an artifact names it."""

    label: str
    direction: str
    """lower | higher: the side of the baseline on which a model has learned something."""
    metrics: dict[str, str]
    """The metrics that it bounds, each with the name that the baseline's own record gives it."""
    about: str = ""
    """How it is computed, in a sentence for the notes."""
    task: tuple[Override, ...] = ()
    """The task that measures it; none where ``values`` are given."""
    at_scale: dict[str, Overrides] = field(default_factory=dict)
    """Further overrides of the task by scale."""
    values: dict[str, float] = field(default_factory=dict)
    """Values that need no data, by metric; ``about`` gives the reason."""
    at: dict[str, str] = field(default_factory=dict)
    """Axis values at which it is measured, where models differ in other data."""
    judges: str = MODEL
    """The claims that a model which does not beat it cannot support: all, those that read ``metrics``, or none."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Baseline":
        known = registry()
        entries = dict(known[node.name].items()) if node.name in known else {}
        for key, child in configs.entries(node, optional=KEYS).items():
            entries[key] = configs.over(entries[key], child) if key in entries else child
        if not {"label", "direction"} <= entries.keys():
            raise node.error(
                f"baseline '{node.name}' is none of papers/baselines.yaml{nearest(node.name, known)}, and lacks label, "
                "direction, and task or values"
            )
        if ("task" in entries) == ("values" in entries):
            raise node.error(f"baseline '{node.name}' has a task that measures it, or values: give one")
        hints = cls.__annotations__
        values: dict[str, Any] = {
            key: configs.convert(hints[key], child)
            for key, child in entries.items()
            if key not in ("task", "metrics", "at")
        }
        if values.get("values") and not values.get("about"):
            raise entries["values"].error(f"baseline '{node.name}' gives numbers without their reason: add 'about'")
        for key, words in (("direction", DIRECTIONS), ("judges", JUDGES)):
            if values.get(key, words[0]) not in words:
                raise entries[key].error(f"{key} is {', '.join(words)}, not {values[key]!r}")
        values["metrics"] = {name: name for name in values.get("values", {})}
        if (named := entries.get("metrics")) is not None and named.is_sequence:
            values["metrics"] = {child.text(): child.text() for child in named.elements()}
        elif named is not None:
            values["metrics"] = configs.convert(dict[str, str], named)
        if not values["metrics"] and values.get("judges") != NOTHING:
            raise node.error(f"baseline '{node.name}' bounds no metric: give it 'metrics', or judges: nothing")
        if "task" in entries:
            values["task"] = (override_of("task", entries["task"]),)
        if "at" in entries:
            values["at"] = {axis: child.text() for axis, child in entries["at"].items().items()}
        return cls(**values)

    def overrides(self, scale: str) -> list[Override]:
        return [*self.task, *self.at_scale.get(scale, Overrides()).items]

    def problems(self, axes: Mapping[str, Axis], metrics: Mapping[str, Any], scales: Sequence[str]) -> Iterator[str]:
        yield from (f"at: {problem}" for problem in place_problems(axes, self.at))
        for metric in dict.fromkeys([*self.metrics, *self.values]):
            if metric not in metrics or not metrics[metric].measured:
                yield f"it bounds '{metric}', which no cell measures{nearest(metric, metrics)}"
            elif metrics[metric].direction != self.direction:
                yield f"its direction is {self.direction}, that of '{metric}' is {metrics[metric].direction}"
        yield from unknown("scale", self.at_scale, scales)


@functools.cache
def registry() -> dict[str, Node]:
    return configs.read(LIST).items()


@dataclass(frozen=True)
class PlannedBaseline:
    """A baseline of the models at some places, which have the same data."""

    name: str
    spec: Baseline
    keys: frozenset[Key]
    cells: dict[int, PlannedCell]

    def common(self) -> dict[str, str]:
        first, *others = map(dict, sorted(self.keys))
        return {axis: value for axis, value in first.items() if all(other[axis] == value for other in others)}


@dataclass(frozen=True)
class MeasuredBaseline:
    """A planned baseline with the records of its seeds."""

    plan: PlannedBaseline
    own: dict[int, Record]
    reference: dict[int, Record]
    seeds: tuple[int, ...]

    @property
    def spec(self) -> Baseline:
        return self.plan.spec

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
            return next((cell.missing for cell in self.plan.cells.values() if cell.missing), "not run")
        seed, record = min(self.found.items())
        if record.status != FINISHED:
            return f"seed {seed} {record.status}" + (f": {record.note}" if record.note else "")
        name = self.spec.metrics.get(metric, metric)
        return f"n/a: {record.unavailable[name]}" if name in record.unavailable else f"it has not measured {name}"

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
class Shortfall:
    """Why a model supports no claim."""

    text: str
    not_beaten: bool
    """Whether the baseline is known and not beaten; else there is nothing to compare."""


def shortfall(view: Any, key: Key, metric: str | None) -> Shortfall | None:
    """Return why the model at a place supports no claim on a metric (None: on its files); None if it beats them."""
    found, absent = view.results(view.point(dict(key))), None
    for one in view.baselines:
        for name in one.bounded(metric) if key in one.plan.keys else ():
            own, bound = values(found, name), one.samples(name)
            if own and not bound:
                absent = absent or Shortfall(f"no baseline: {one.spec.label}: {one.lack(name)}", False)
            elif own and not is_better(own, bound, one.spec.direction):
                spec = view.artifact.metrics[name]
                numbers = [spec.text(stats.mean(list(side.values())) / spec.factor) for side in (own, bound)]
                where = f"{label(view.artifact, key)}: {spec.title} {numbers[0]}"
                return Shortfall(f"{where}, {one.spec.label} {numbers[1]}", True)
    return absent


def label(artifact: Any, key: Key) -> str:
    return ", ".join(artifact.axes[axis].values[value].label for axis, value in key)


def title(one: MeasuredBaseline, several: bool, artifact: Any) -> str:
    """Return the name of a baseline in a table, with its models' place where there are several of the name."""
    if not several or not (common := one.plan.common()):
        return one.spec.label
    varied = {axis for axis in common if len(artifact.axes[axis].values) > 1}
    place = tuple((axis, value) for axis, value in common.items() if axis in varied)
    return f"{one.spec.label}, {label(artifact, place)}" if place else one.spec.label
