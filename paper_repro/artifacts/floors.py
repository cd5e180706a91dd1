"""Floors: what costs nothing to reach on the data of a model, and what is judged on a model that is not better.

A floor is a cell of its own, with a record and a seal like every other: the config of the artifact's scale with the
data of the models that it is held against, and a task that trains nothing.  It is no value of an axis, for then every
axis would carry rows that have no parameters, no rate and no budget, a published "-" in each of them, and a check by
hand in every predicate.  Its id follows from the task, the seed and the data, so artifacts on the same data share it,
and models whose data differ have a floor each.  What follows without any data (chance among four answers) is written
in the YAML, with its reason.

``papers/floors.yaml`` holds what a floor is; an artifact names the metrics that it bounds:

    floors:
      bigram: {metrics: [val_loss]}

Every place whose samples or files a predicate reads is noted (``views.Witness``).  A model there that is not better
than its floor, by the interval over seeds or with one seed by the number, decides nothing: the judgement becomes
``not judged: below the floor``.  Parts are treated one by one: an order, a closeness and a computed predicate each
answer for what they have read themselves, and a function that judges parts wraps each of them in ``guards.guarded``.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import intervals
from paper_repro.artifacts.axes import Overrides
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.intervals import Interval
from paper_repro.artifacts.judgements import UNDECIDED, Judgement
from paper_repro.artifacts.names import place_problems
from paper_repro.base import typed_yaml
from paper_repro.base.errors import nearest
from paper_repro.base.overrides import Override, single
from paper_repro.base.typed_yaml import Node
from paper_repro.cells.planned import Key, PlannedCell
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED

if TYPE_CHECKING:
    from paper_repro.artifacts.views import View

LIST = Path(__file__).parents[1] / "papers" / "floors.yaml"
DIRECTIONS = ("lower", "higher")
MODEL, METRICS, NOTHING = "model", "metrics", "nothing"
JUDGES = (MODEL, METRICS, NOTHING)
OTHERS = "all others"
"""Whose a floor is where its models have nothing in common that others lack."""
KEYS = ("label", "direction", "about", "task", "at_scale", "values", "judges", "metrics", "at")


@dataclass(frozen=True)
class Floor:
    """What is reached without learning, as an artifact names it."""

    label: str
    direction: str
    """lower | higher: the side of the floor on which a model has learned something."""
    metrics: dict[str, str]
    """What it bounds: a metric of the artifact to what the floor's own record calls it."""
    about: str = ""
    """How it is computed, in a sentence for the notes."""
    task: tuple[Override, ...] = ()
    """The task that measures it; none where ``values`` are given."""
    at_scale: dict[str, Overrides] = field(default_factory=dict)
    """Further overrides of the task by scale."""
    values: dict[str, float] = field(default_factory=dict)
    """What needs no data, by metric; ``about`` gives the reason."""
    at: dict[str, str] = field(default_factory=dict)
    """Values of axes along which the models' data differ in what the floor does not depend on: it is measured there."""
    judges: str = MODEL
    """What is not judged of a model that is not better: anything (model), claims that read one of the metrics
    (metrics), or nothing (then it is shown for comparison)."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Floor":
        known = registry()
        entries = dict(known[node.name].items()) if node.name in known else {}
        for key, child in typed_yaml.entries(node, optional=KEYS).items():
            entries[key] = typed_yaml.over(entries[key], child) if key in entries else child
        required = ("label", "direction")
        if not set(required) <= entries.keys():
            raise node.error(
                f"floor '{node.name}' is none of papers/floors.yaml{nearest(node.name, known)}, and does not say what "
                f"it is: {', '.join(required)}, and task or values"
            )
        if ("task" in entries) == ("values" in entries):
            raise node.error(f"floor '{node.name}' has a task that measures it, or values: one of both")
        label, direction = (typed_yaml.convert(str, entries[name]) for name in required)
        about = typed_yaml.convert(str, entries["about"]) if "about" in entries else ""
        values = typed_yaml.convert(dict[str, float], entries["values"]) if "values" in entries else {}
        if values and not about:
            raise entries["values"].error(f"floor '{node.name}' gives numbers without their reason: missing 'about'")
        if direction not in DIRECTIONS:
            raise entries["direction"].error(f"direction is lower or higher, not {direction!r}")
        judges = typed_yaml.convert(str, entries["judges"]) if "judges" in entries else MODEL
        if judges not in JUDGES:
            raise entries["judges"].error(f"judges is {', '.join(JUDGES)}, not {judges!r}")
        metrics = _names(entries["metrics"]) if "metrics" in entries else {name: name for name in values}
        if not metrics and judges != NOTHING:
            raise node.error(f"floor '{node.name}' bounds no metric: give it 'metrics', or judges: nothing")
        at_scale = typed_yaml.convert(dict[str, Overrides], entries["at_scale"]) if "at_scale" in entries else {}
        task = (single("task", entries["task"]),) if "task" in entries else ()
        at = {axis: child.text() for axis, child in entries["at"].items().items()} if "at" in entries else {}
        return cls(label, direction, metrics, about, task, at_scale, values, at, judges)

    def overrides(self, scale: str) -> list[Override]:
        """Return what makes the floor's config at a scale out of the models'."""
        return [*self.task, *self.at_scale.get(scale, Overrides()).items]


def _names(node: Node) -> dict[str, str]:
    if node.is_sequence:
        return {child.text(): child.text() for child in node.elements()}
    return typed_yaml.convert(dict[str, str], node)


@functools.cache
def registry(path: Path = LIST) -> dict[str, Node]:
    """Return what ``papers/floors.yaml`` says of each floor, by name."""
    return typed_yaml.read(path).items()


def problems(
    floors: Mapping[str, Floor], axes: Mapping[str, Any], metrics: Mapping[str, Any], scales: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with an artifact's floors: the floor's name, and the sentence."""
    for name, floor in floors.items():
        for problem in place_problems(axes, floor.at):
            yield name, f"floor '{name}', at: {problem}"
        for metric in [*floor.metrics, *(value for value in floor.values if value not in floor.metrics)]:
            if metric not in metrics or not metrics[metric].measured:
                yield name, f"floor '{name}' bounds '{metric}', which no cell measures{nearest(metric, metrics)}"
            elif metrics[metric].direction == "none":
                yield (
                    name,
                    f"floor '{name}' bounds '{metric}', which has no direction: nothing is better",
                )
            elif metrics[metric].direction != floor.direction:
                better = metrics[metric].direction
                yield (
                    name,
                    f"floor '{name}' is passed by a {floor.direction} number, and of '{metric}' {better} is better",
                )
        for word in floor.at_scale:
            if word not in scales:
                yield name, f"floor '{name}': unknown scale '{word}'{nearest(word, scales)}"


@dataclass(frozen=True)
class PlannedFloor:
    """A floor of the models at some places, which have the same data."""

    name: str
    spec: Floor
    keys: frozenset[Key]
    cells: dict[int, PlannedCell]
    """By seed; none where the values are given."""

    def common(self) -> dict[str, str]:
        """Return the axis values that all its models have."""
        first, *others = map(dict, sorted(self.keys))
        return {axis: value for axis, value in first.items() if all(other[axis] == value for other in others)}


@dataclass(frozen=True)
class MeasuredFloor:
    """A planned floor with the records of its seeds."""

    plan: PlannedFloor
    own: dict[int, Record]
    reference: dict[int, Record]
    seeds: tuple[int, ...]

    @property
    def spec(self) -> Floor:
        return self.plan.spec

    @property
    def found(self) -> dict[int, Record]:
        """The records, the user's own before the reference's: the same id is the same data."""
        return {**self.reference, **self.own}

    def samples(self, metric: str, found: Mapping[int, Record] | None = None) -> dict[int, float]:
        """Return the floor of a metric of the artifact by seed, of all records or of those given."""
        if metric in self.spec.values:
            return dict.fromkeys(self.seeds, self.spec.values[metric])
        name = self.spec.metrics.get(metric, metric)
        records = self.found if found is None else found
        return {
            seed: record.metrics[name]
            for seed, record in records.items()
            if record.status == FINISHED and name in record.metrics
        }

    def lack(self, metric: str) -> str:
        """Return why there is no number for a metric."""
        missing = next((cell.missing for cell in self.plan.cells.values() if cell.missing), "")
        for seed, record in sorted(self.found.items()):
            if record.status != FINISHED:
                return f"seed {seed} {record.status}" + (f": {record.note}" if record.note else "")
            name = self.spec.metrics.get(metric, metric)
            return f"n/a: {record.unavailable[name]}" if name in record.unavailable else f"it has not measured {name}"
        return missing or "not run"


def shortfall(view: "View", key: Key, metric: str | None) -> Judgement | None:
    """Return why the model at a place decides nothing; None if it is better than its floors, or has no result.

    Of several floors that it is not better than the first is told; more seeds may let it pass if they may at each.

    Args:
        metric: what was read of it; None for its files or records.
    """
    if not any(record.status == FINISHED for record in view.results(key).values()):
        return None
    compared, asked = 0, [pair for floor in view.floors if key in floor.plan.keys for pair in _bounds(floor, metric)]
    below = list[Judgement]()
    for floor, name in asked:
        own = _measured(view, key, name)
        if not own:
            continue
        bound = floor.samples(name)
        if not bound:
            return first_below(below) or Judgement(UNDECIDED, f"no floor: {floor.spec.label}: {floor.lack(name)}")
        compared += 1
        if not is_better(own, bound, floor.spec.direction):
            text = f"{_label(view, key)}: {_compared(view, floor, name, own, bound)}"
            below.append(Judgement(NOT_JUDGED, text, may_pass=may_pass(own, bound, floor.spec.direction)))
    if asked and not compared:
        names = ", ".join(dict.fromkeys(name for _, name in asked))
        return Judgement(UNDECIDED, f"{_label(view, key)}: no {names} to hold against the floor")
    return first_below(below)


def first_below(found: Sequence[Judgement]) -> Judgement | None:
    """Return the first of some shortfalls, which more seeds may mend if they may mend all of them; None of none."""
    return replace(found[0], may_pass=all(one.may_pass for one in found)) if found else None


def _measured(view: "View", key: Key, metric: str) -> dict[int, float]:
    """Return a metric of the finished models at a full place, by seed."""
    return {
        seed: record.metrics[metric]
        for seed, record in view.results(key).items()
        if record.status == FINISHED and metric in record.metrics
    }


def _bounds(floor: MeasuredFloor, metric: str | None) -> list[tuple[MeasuredFloor, str]]:
    """Return the metrics in which a model must be better than a floor where one of its metrics is read."""
    if floor.spec.judges == MODEL:
        return [(floor, name) for name in floor.spec.metrics]
    if floor.spec.judges == METRICS and metric in floor.spec.metrics:
        return [(floor, metric)]
    return []


def difference(model: Mapping[int, float], floor: Mapping[int, float]) -> Interval:
    """Return the 95 % interval of a model's mean less its floor's, in which all seeds of the model count.

    It is paired where the floor has them all.  Else a floor that is the same in all of its own seeds is a number that
    the model's are held against, and of one that varies with the seed the interval is Welch's.
    """
    if model.keys() <= floor.keys():
        return intervals.of([value - floor[seed] for seed, value in model.items()])
    own, bound = list(model.values()), list(floor.values())
    if len(set(bound)) == 1:
        return intervals.of([value - bound[0] for value in own])
    return intervals.welch(own, bound)


def is_better(model: Mapping[int, float], floor: Mapping[int, float], direction: str) -> bool:
    """Return whether a model is better than its floor: the whole interval of the difference over seeds is on the better
    side; of a model with one seed, the difference is.
    """
    found = difference(model, floor)
    if len(model) < 2:
        return (found.mean < 0) if direction == "lower" else (found.mean > 0)
    return (found.high < 0) if direction == "lower" else (found.low > 0)


def may_pass(model: Mapping[int, float], floor: Mapping[int, float], direction: str) -> bool:
    """Return whether more seeds may show that a model is better than its floor: the interval of the difference reaches
    the better side.
    """
    found = difference(model, floor)
    return (found.low < 0) if direction == "lower" else (found.high > 0)


def _compared(
    view: "View", floor: MeasuredFloor, name: str, own: Mapping[int, float], bound: Mapping[int, float]
) -> str:
    """Return both means and, of two seeds or more, the interval of the difference that decided, in words."""
    metric = view.artifact.metrics[name]
    numbers = [metric.text(intervals.mean(list(side.values())) / metric.factor) for side in (own, bound)]
    text = f"{metric.title} {numbers[0]}, {floor.spec.label} {numbers[1]}"
    if len(own) < 2:
        return text
    found = difference(own, bound)
    low, high = (metric.text(end / metric.factor) for end in (found.low, found.high))
    return f"{text}, difference [{low}, {high}]"


def _label(view: "View", key: Key) -> str:
    axes = view.artifact.axes
    told = [axis for axis in axes if len({dict(other)[axis] for other in view.points}) > 1] or list(axes)
    return ", ".join(axes[axis].values[value].label for axis, value in key if axis in told)


def remarks(view: "View") -> list[str]:
    """Return a sentence on how each floor is computed, and one on the models that are not better than theirs."""
    found = []
    for name, spec in view.artifact.floors.items():
        lines = [floor for floor in view.floors if floor.plan.name == name]
        if not lines:
            continue
        about = f": {spec.about}" if spec.about else ""
        if spec.judges == NOTHING:
            told = about.removesuffix(".") or ": a number to compare with"
            found.append(f"Floor, {spec.label}{told}. It decides nothing: models that are worse are judged, too.")
        else:
            found += [f"Floor, {spec.label}{about}", *_below(view, name, lines)]
    return found


def whose(view: "View", floor: PlannedFloor) -> str:
    """Return the models of a floor in words: what all of them have in common, by the labels of the axes on which not
    all models agree; else what they have and no other model has, where that is the shorter list; else ``OTHERS``.
    """
    axes, places = view.artifact.axes, [dict(key) for key in view.points]
    varied = [axis for axis in axes if len({place[axis] for place in places}) > 1]
    common = floor.common()
    if shared := [axes[axis].values[common[axis]].label for axis in varied if axis in common]:
        return ", ".join(shared)
    for axis in varied:
        own = {dict(key)[axis] for key in floor.keys}
        others = {dict(key)[axis] for key in view.points if key not in floor.keys}
        if not own & others and len(own) < len(others):
            return " and ".join(value.label for name, value in axes[axis].values.items() if name in own)
    return OTHERS


def _below(view: "View", name: str, lines: Sequence[MeasuredFloor]) -> Iterator[str]:
    for metric in view.artifact.floors[name].metrics:
        below, count = [], 0
        for floor in lines:
            bound = floor.samples(metric)
            for key in view.points:
                own = _measured(view, key, metric) if key in floor.plan.keys else {}
                if own and bound:
                    count += 1
                    below += [] if is_better(own, bound, floor.spec.direction) else [_label(view, key)]
        if count:
            title = view.artifact.metrics[metric].title
            if below:
                number = f"{len(below)} is" if len(below) == 1 else f"{len(below)} are"
                yield f"Of {count} models {number} not better than this floor in {title}: {'; '.join(below)}."
            else:
                all_are = {1: "The model is", 2: "Both models are"}.get(count, f"All {count} models are")
                yield f"{all_are} better than this floor in {title}."
