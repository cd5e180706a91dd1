"""What a paper claims in words, as small predicates that are judged over seeds.

A judgement is ``holds``, ``fails``, ``undecided`` or ``not judged`` (``artifacts.floors``).  Orders and closeness are
judged by the 95 % interval of the difference (or log ratio) over seeds, never on one run; ``all``, ``any`` and ``not``
follow Kleene's three-valued logic.
"""

import itertools
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, Protocol, cast

from paper_repro.artifacts import intervals
from paper_repro.artifacts.companions import named
from paper_repro.artifacts.evidence import Evidence
from paper_repro.artifacts.guards import NOT_JUDGED, above_the_floor
from paper_repro.base import typed_yaml
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.typed_yaml import Node

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
Place = dict[str, str]


@dataclass(frozen=True)
class Judgement:
    """A verdict, the sentence that carries its numbers, and the parts it was put together from."""

    verdict: str
    because: str
    parts: tuple[tuple[str, "Judgement"], ...] = ()


class Predicate(Protocol):
    """Something that can be judged from the records of an artifact."""

    def judge(self, view: Evidence, place: Place) -> Judgement:
        """Judge the predicate; ``place`` fixes the axes over which the claim runs."""

    def problems(self, names: "Names") -> Iterator[str]:
        """Return what is wrong with the predicate as written, in words."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Predicate":
        entries = node.items()
        if len(entries) != 1 or next(iter(entries)) not in _KINDS:
            raise node.error(f"a predicate has one of the keys {', '.join(_KINDS)}")
        kind, child = next(iter(entries.items()))
        return _KINDS[kind](child)


@dataclass(frozen=True)
class Claim:
    """What the paper says in words or shows, as a predicate over cells."""

    id: str
    """In YAML, not given: that of the paper's claim."""
    says: str
    where: str
    predicate: Predicate
    catalogue: str | None = None
    """The id of the paper's claim in ``papers/claims.yaml`` that this one tests, or a part of it; None: none there."""
    ours: bool = False
    """Whether it is a question of ours; ``where`` then names the place that it is about."""
    over: list[str] = field(default_factory=list)
    """Axes over whose every combination of values the predicate is judged; the claim holds if it holds everywhere."""
    only: dict[str, list[str]] = field(default_factory=dict)
    """Restricts an axis of ``over`` to some of its values."""
    somewhere: bool = False
    """Whether it is enough that the predicate holds at one of the places."""
    scales: list[str] = field(default_factory=list)
    """The scales at which it may honestly be judged (empty: all)."""
    without_floor: str | None = None
    """Why it is judged whatever the models have learned: it is about nothing that they learn."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Claim":
        hints, required = typing.get_type_hints(cls), ("says", "where", "predicate")
        found = typed_yaml.entries(node, required, [name for name in hints if name not in required])
        values = {name: typed_yaml.convert(hints[name], child) for name, child in found.items()}
        if "id" not in values and "catalogue" not in values:
            raise node.error("missing 'id' in 'claims'")
        return cls(**{"id": values.get("catalogue"), **values})


@dataclass(frozen=True)
class Names:
    """What a predicate may refer to."""

    axes: Mapping[str, Any]
    measured: Sequence[str]
    columns: Sequence[str]
    over: Sequence[str]

    def metric_problems(self, side: "Side") -> Iterator[str]:
        """Yield what is wrong with a side that is measured over seeds."""
        if side.metric not in self.measured:
            yield f"unknown metric '{side.metric}'{nearest(side.metric, self.measured)}"
        yield from self._open_axes(side.place)

    def column_problems(self, side: "Side") -> Iterator[str]:
        """Yield what is wrong with a side that is counted."""
        if side.metric not in self.columns:
            yield f"unknown column '{side.metric}'{nearest(side.metric, self.columns)}"
        yield from self._open_axes(side.place)

    def _open_axes(self, place: Place) -> Iterator[str]:
        yield from place_problems(self.axes, place)
        for axis in self.axes:
            if axis not in place and axis not in self.over:
                yield f"axis '{axis}' is left open: give its value, or put it under 'over'"
            if axis in place and axis in self.over:
                yield f"axis '{axis}' is both fixed and under 'over'"


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a metric at a place."""

    metric: str
    place: Place

    @classmethod
    def read(cls, node: Node, metric: str | None) -> "Side":
        place = {key: child.text() for key, child in node.items().items()}
        own = place.pop("metric", metric)
        if own is None:
            raise node.error("missing 'metric'")
        return cls(own, place)


@dataclass(frozen=True)
class Order:
    """One side is greater than the other, by more than ``margin`` (relative where ``compare`` is ratio)."""

    greater: Side
    lesser: Side
    compare: str = "difference"
    margin: float = 0.0

    @classmethod
    def from_yaml(cls, node: Node) -> "Order":
        entries = typed_yaml.entries(node, required=("greater", "lesser"), optional=("metric", "compare", "margin"))
        metric = _optional_text(entries, "metric")
        compare = _optional_text(entries, "compare") or "difference"
        if compare not in ("difference", "ratio"):
            raise entries["compare"].error(f"compare is difference or ratio, not {compare!r}")
        margin = typed_yaml.convert(float, entries["margin"]) if "margin" in entries else 0.0
        if compare == "ratio" and margin <= -1.0:
            raise entries["margin"].error(f"a relative margin is above -1, not {margin:g}")
        return cls(Side.read(entries["greater"], metric), Side.read(entries["lesser"], metric), compare, margin)

    @above_the_floor
    def judge(self, view: Evidence, place: Place) -> Judgement:
        interval, sentence = _contrast(view, self.greater, self.lesser, place, self.compare)
        if interval is None or interval.count < 2:
            return Judgement(UNDECIDED, sentence)
        threshold = math.log1p(self.margin) if self.compare == "ratio" else self.margin
        verdict = HOLDS if interval.low > threshold else FAILS if interval.high < threshold else UNDECIDED
        return Judgement(verdict, sentence)

    def problems(self, names: Names) -> Iterator[str]:
        for side in (self.greater, self.lesser):
            yield from names.metric_problems(side)


@dataclass(frozen=True)
class Close:
    """Two sides differ by at most ``within`` (relative); holds when the whole interval lies inside."""

    left: Side
    right: Side
    within: float

    @classmethod
    def from_yaml(cls, node: Node) -> "Close":
        entries = typed_yaml.entries(node, required=("left", "right", "within"), optional=("metric",))
        metric = _optional_text(entries, "metric")
        within = typed_yaml.convert(float, entries["within"])
        if within <= 0.0:
            raise entries["within"].error(f"'within' is above 0, not {within:g}")
        return cls(Side.read(entries["left"], metric), Side.read(entries["right"], metric), within)

    @above_the_floor
    def judge(self, view: Evidence, place: Place) -> Judgement:
        interval, sentence = _contrast(view, self.left, self.right, place, "ratio")
        if interval is None or interval.count < 2:
            return Judgement(UNDECIDED, sentence)
        limit = math.log1p(self.within)
        if -limit <= interval.low and interval.high <= limit:
            return Judgement(HOLDS, sentence)
        outside = interval.low > limit or interval.high < -limit
        return Judgement(FAILS if outside else UNDECIDED, sentence)

    def problems(self, names: Names) -> Iterator[str]:
        for side in (self.left, self.right):
            yield from names.metric_problems(side)


@dataclass(frozen=True)
class Equal:
    """A counted quantity has exactly this value, or the value it has at another place."""

    side: Side
    value: float | None
    other: Side | None

    @classmethod
    def from_yaml(cls, node: Node) -> "Equal":
        entries = typed_yaml.entries(node, required=("column", "at"), optional=("value", "same_as"))
        if ("value" in entries) == ("same_as" in entries):
            raise node.error("equal takes one of 'value' and 'same_as'")
        column = typed_yaml.convert(str, entries["column"])
        value = typed_yaml.convert(float, entries["value"]) if "value" in entries else None
        other = Side.read(entries["same_as"], column) if "same_as" in entries else None
        return cls(Side.read(entries["at"], column), value, other)

    def judge(self, view: Evidence, place: Place) -> Judgement:
        found = view.counted(self.side.metric, {**place, **self.side.place})
        wanted = self.value
        if self.other is not None:
            wanted = view.counted(self.other.metric, {**place, **self.other.place})
        if found is None or wanted is None:
            return Judgement(UNDECIDED, "not run")
        relation = "=" if found == wanted else "is not"
        return Judgement(HOLDS if found == wanted else FAILS, f"{found:,.0f} {relation} {wanted:,.0f}")

    def problems(self, names: Names) -> Iterator[str]:
        for side in (self.side, self.other):
            if side is not None:
                yield from names.column_problems(side)


@dataclass(frozen=True)
class Every:
    """All parts hold."""

    parts: tuple[Predicate, ...]
    decisive: ClassVar[str] = FAILS
    otherwise: ClassVar[str] = HOLDS

    @classmethod
    def from_yaml(cls, node: Node) -> "Every":
        parts = tuple(Predicate.from_yaml(child) for child in node.elements())
        if not parts:
            raise node.error(f"'{node.name}' lists no predicate: it would say nothing")
        return cls(parts)

    def judge(self, view: Evidence, place: Place) -> Judgement:
        return combine([("", part.judge(view, place)) for part in self.parts], self.decisive, self.otherwise)

    def problems(self, names: Names) -> Iterator[str]:
        for part in self.parts:
            yield from part.problems(names)


@dataclass(frozen=True)
class Some(Every):
    """At least one part holds."""

    decisive: ClassVar[str] = HOLDS
    otherwise: ClassVar[str] = FAILS


@dataclass(frozen=True)
class Negation:
    """The part does not hold."""

    part: Predicate

    @classmethod
    def from_yaml(cls, node: Node) -> "Negation":
        return cls(Predicate.from_yaml(node))

    def judge(self, view: Evidence, place: Place) -> Judgement:
        inner = self.part.judge(view, place)
        flipped = {HOLDS: FAILS, FAILS: HOLDS}.get(inner.verdict, inner.verdict)
        return Judgement(flipped, inner.because, inner.parts)

    def problems(self, names: Names) -> Iterator[str]:
        yield from self.part.problems(names)


@dataclass(frozen=True)
class Computed:
    """Judged by a function of the records.

    ``name`` is a dotted path to it, or NAME of ``judge_NAME(view)`` in the Python file beside the artifact or its base.
    """

    name: str
    where: str = field(compare=False)

    @classmethod
    def from_yaml(cls, node: Node) -> "Computed":
        return cls(typed_yaml.convert(str, node), node.where)

    def function(self, companions: Sequence[ModuleType]) -> Callable[[Evidence], Judgement]:
        """Return the function that judges.

        Raises:
            UsageError: there is none of that name.
        """
        if "." in self.name:
            return cast(Callable[[Evidence], Judgement], named(self.name, self.where))
        functions = (getattr(companion, f"judge_{self.name}", None) for companion in companions)
        function = next((found for found in functions if found is not None), None)
        if function is None:
            raise UsageError(f"{self.where}: there is no function judge_{self.name}(view) in the Python file beside it")
        return cast(Callable[[Evidence], Judgement], function)

    @above_the_floor
    def judge(self, view: Evidence, place: Place) -> Judgement:
        judgement = self.function(view.artifact.companions())(view)
        assert isinstance(judgement, Judgement)
        return judgement

    def problems(self, names: Names) -> Iterator[str]:
        yield from ()


_KINDS: dict[str, Any] = {
    "order": Order.from_yaml,
    "close": Close.from_yaml,
    "equal": Equal.from_yaml,
    "all": Every.from_yaml,
    "any": Some.from_yaml,
    "not": Negation.from_yaml,
    "computed": Computed.from_yaml,
}


def judge(claim: Claim, view: Evidence) -> Judgement:
    """Judge a claim at every combination of the axes it runs over, and combine the verdicts."""
    if claim.scales and view.scale_name not in claim.scales:
        return Judgement(UNDECIDED, f"to be judged at scale {' or '.join(claim.scales)}")
    view = view if claim.without_floor is None else view.without_floors()
    if not claim.over:
        return claim.predicate.judge(view, {})
    chosen = {axis: claim.only.get(axis, list(view.artifact.axes[axis].values)) for axis in claim.over}
    axes = [[(axis, value) for value in values] for axis, values in chosen.items()]
    parts = []
    for place in filter(lambda items: view.covers(dict(items)), itertools.product(*axes)):
        label = ", ".join(view.artifact.axes[axis].values[value].label for axis, value in place)
        parts.append((label, claim.predicate.judge(view, dict(place))))
    if not parts:
        return Judgement(UNDECIDED, "the scale has no such cells")
    return combine(parts, *((HOLDS, FAILS) if claim.somewhere else (FAILS, HOLDS)))


def combine(parts: Sequence[tuple[str, Judgement]], decisive: str, otherwise: str) -> Judgement:
    """Combine parts by Kleene's conjunction (decisive ``fails``) or disjunction (decisive ``holds``).

    A part that is not judged is unknown as an undecided one is: another part may still be decisive, and nothing else
    can be said.  ``not judged`` goes before ``undecided``, because more seeds would decide the latter alone.
    """
    words = (HOLDS, FAILS, UNDECIDED, NOT_JUDGED)
    counts = {verdict: sum(part.verdict == verdict for _, part in parts) for verdict in words}
    unknown = next((verdict for verdict in (NOT_JUDGED, UNDECIDED) if counts[verdict]), otherwise)
    verdict = decisive if counts[decisive] else unknown
    because = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return Judgement(verdict, because, tuple(parts))


def place_problems(axes: Mapping[str, Any], place: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with a partial place in an artifact, in words."""
    for axis, value in place.items():
        if axis not in axes:
            yield f"unknown axis '{axis}'{nearest(axis, axes)}"
        elif value not in axes[axis].values:
            yield f"unknown value '{value}' of axis '{axis}'{nearest(value, axes[axis].values)}"


def _contrast(
    view: Evidence, left: Side, right: Side, place: Place, compare: str
) -> tuple[intervals.Interval | None, str]:
    sides = [(side.metric, {**place, **side.place}) for side in (left, right)]
    samples = [view.samples(*side) for side in sides]
    if not all(samples):
        return None, next(view.absence(*side) for side, sample in zip(sides, samples, strict=True) if not sample)
    if compare == "ratio":
        if any(value <= 0 for sample in samples for value in sample.values()):
            return None, "a ratio needs positive values"
        samples = [{seed: math.log(value) for seed, value in sample.items()} for sample in samples]
    interval = intervals.compare(*samples)
    if interval.count < 2:
        return interval, "one seed: not judged"
    numbers = (interval.mean, interval.low, interval.high)
    if compare == "ratio":
        numbers = (math.exp(numbers[0]), math.exp(numbers[1]), math.exp(numbers[2]))
    text = "{:.3f} [{:.3f}, {:.3f}]" if compare == "ratio" else "{:.4g} [{:.4g}, {:.4g}]"
    pairing = f"{interval.count} pairs" if interval.paired else f"{interval.count} seeds, unpaired"
    return interval, f"{compare} {text.format(*numbers)}, {pairing}"


def _optional_text(entries: Mapping[str, Node], key: str) -> str | None:
    return typed_yaml.convert(str, entries[key]) if key in entries else None
