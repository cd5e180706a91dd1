"""What a paper claims in words, as small predicates that are judged over seeds.

A judgement is ``holds``, ``fails``, ``no difference`` (of the smallest size that matters), ``undecided`` or ``not
judged`` (``artifacts.floors``).  Orders and closeness are judged by the 95 % interval of the difference (or log ratio)
over seeds, never on one run; ``all``, ``any`` and ``not`` combine judgements by the rules of
``paper_repro.artifacts.judgements``.
"""

import itertools
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from paper_repro.artifacts import intervals
from paper_repro.artifacts.brackets import Bracketed
from paper_repro.artifacts.companions import named
from paper_repro.artifacts.guards import above_the_floor
from paper_repro.artifacts.judgements import (
    FAILS,
    HOLDS,
    LEVEL,
    OTHER_SCALE,
    SMALL,
    UNDECIDED,
    Judgement,
    Smallest,
    combine,
    exactly,
    negate,
    settle,
    supported,
    tested,
)
from paper_repro.artifacts.names import NO_SMALLEST, Names, Place, Side, comparison_names
from paper_repro.base import typed_yaml
from paper_repro.base.errors import UsageError
from paper_repro.base.typed_yaml import Node

if TYPE_CHECKING:
    from paper_repro.artifacts.views import View

__all__ = [
    "FAILS",
    "HOLDS",
    "SMALL",
    "UNDECIDED",
    "Claim",
    "Judgement",
    "Names",
    "Place",
    "Predicate",
    "Side",
    "combine",
    "exactly",
    "judge",
    "tested",
]


class Predicate(Protocol):
    """Something that can be judged from the records of an artifact."""

    def judge(self, view: "View", place: Place) -> Judgement:
        """Judge the predicate; ``place`` fixes the axes over which the claim runs."""

    def problems(self, names: Names) -> Iterator[str]:
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
    smallest: Smallest | None = None
    """The smallest effect that matters; None for a claim of exact arithmetic."""
    line: str = field(default="", compare=False)
    """File and line, set where it is read."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Claim":
        hints, required = typing.get_type_hints(cls), ("says", "where", "predicate")
        found = typed_yaml.entries(node, required, [name for name in hints if name not in (*required, "line")])
        values = {name: typed_yaml.convert(hints[name], child) for name, child in found.items()}
        if "id" not in values and "catalogue" not in values:
            raise node.error("missing 'id' in 'claims'")
        return cls(**{"id": values.get("catalogue"), **values}, line=node.where)

    def is_of(self, scale: str) -> bool:
        """Return whether the claim may be judged at a scale."""
        return not self.scales or scale in self.scales


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

    @property
    def comparison(self) -> tuple[Side, str, Side]:
        return self.greater, "above", self.lesser

    @above_the_floor
    def judge(self, view: "View", place: Place) -> Judgement:
        threshold = math.log1p(self.margin) if self.compare == "ratio" else self.margin
        return _contrast(view, self.greater, self.lesser, place, self.compare, threshold)

    def problems(self, names: Names) -> Iterator[str]:
        for side in (self.greater, self.lesser):
            yield from names.metric_problems(side)
        yield from names.size_problems(self.compare == "ratio")


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

    @property
    def comparison(self) -> tuple[Side, str, Side]:
        return self.left, "and", self.right

    @above_the_floor
    def judge(self, view: "View", place: Place) -> Judgement:
        limit = math.log1p(self.within)
        return _contrast(view, self.left, self.right, place, "ratio", -limit, limit)

    def problems(self, names: Names) -> Iterator[str]:
        for side in (self.left, self.right):
            yield from names.metric_problems(side)
        yield from names.size_problems(True, self.within)


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

    def judge(self, view: "View", place: Place) -> Judgement:
        found = view.counted(self.side.metric, {**place, **self.side.place})
        wanted = self.value
        if self.other is not None:
            wanted = view.counted(self.other.metric, {**place, **self.other.place})
        if found is None or wanted is None:
            return Judgement(UNDECIDED, "not run")
        relation = "=" if found == wanted else "is not"
        return exactly(found == wanted, f"{found:,.0f} {relation} {wanted:,.0f}")

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

    def judge(self, view: "View", place: Place) -> Judgement:
        plain = [part.part if isinstance(part, Negation) else part for part in self.parts]
        comparisons = [part.comparison if isinstance(part, Order | Close) else None for part in plain]
        names = comparison_names(view.artifact, comparisons) if any(comparisons) else [""] * len(self.parts)
        parts = [
            (f"not: {name}" if name and isinstance(part, Negation) else name, part.judge(view, place))
            for name, part in zip(names, self.parts, strict=True)
        ]
        return combine(parts, self.decisive, self.otherwise)

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

    def judge(self, view: "View", place: Place) -> Judgement:
        return negate(self.part.judge(view, place))

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

    def function(self, companions: Sequence[ModuleType]) -> "Callable[[View], Judgement]":
        """Return the function that judges.

        Raises:
            UsageError: there is none of that name.
        """
        if "." in self.name:
            return cast("Callable[[View], Judgement]", named(self.name, self.where))
        functions = (getattr(companion, f"judge_{self.name}", None) for companion in companions)
        function = next((found for found in functions if found is not None), None)
        if function is None:
            raise UsageError(f"{self.where}: there is no function judge_{self.name}(view) in the Python file beside it")
        return cast("Callable[[View], Judgement]", function)

    @above_the_floor
    def judge(self, view: "View", place: Place) -> Judgement:
        judgement = self.function(view.artifact.companions())(view)
        assert isinstance(judgement, Judgement)
        if not any(leaf.tested or leaf.exact for leaf in judgement.leaves()) and (unknown := view.unknown_metric()):
            raise UsageError(f"{self.where}: judge_{self.name} reads {unknown}")
        return judgement

    def problems(self, names: Names) -> Iterator[str]:
        yield from ()


_KINDS: dict[str, Any] = {
    "order": Order.from_yaml,
    "close": Close.from_yaml,
    "equal": Equal.from_yaml,
    "bracketed": Bracketed.from_yaml,
    "all": Every.from_yaml,
    "any": Some.from_yaml,
    "not": Negation.from_yaml,
    "computed": Computed.from_yaml,
}


def judge(claim: Claim, view: "View", level: float = LEVEL) -> Judgement:
    """Judge a claim at every combination of the axes it runs over, and combine the verdicts.

    Raises:
        UsageError: with file and line, it is judged by an interval and names no smallest effect.
    """
    if not claim.is_of(view.scale_name):
        return Judgement(OTHER_SCALE, f"to be judged at scale {' or '.join(claim.scales)}")
    view = view if claim.without_floor is None else view.without_floors()
    found = supported(_judged(claim, view))
    if claim.smallest is None and claim.line and any(leaf.tested is not None for leaf in found.leaves()):
        raise UsageError(f"{claim.line}: claim '{claim.id}' is judged by an interval: {NO_SMALLEST}")
    return settle(found, claim.smallest, level)


def _judged(claim: Claim, view: "View") -> Judgement:
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


def _contrast(
    view: "View", left: Side, right: Side, place: Place, compare: str, low: float, high: float = math.inf
) -> Judgement:
    """Judge whether the difference of two sides, or the logarithm of their ratio, lies above low and below high."""
    sides = [(side.metric, {**place, **side.place}) for side in (left, right)]
    samples = [view.samples(*side) for side in sides]
    if not all(samples):
        lacking = next(side for side, sample in zip(sides, samples, strict=True) if not sample)
        return Judgement(UNDECIDED, view.absence(*lacking))
    base = intervals.mean(list(samples[1].values()))
    if compare == "ratio":
        if any(value <= 0 for sample in samples for value in sample.values()):
            return Judgement(UNDECIDED, "a ratio needs positive values")
        samples = [{seed: math.log(value) for seed, value in sample.items()} for sample in samples]
    interval = intervals.compare(*samples)
    numbers = (interval.mean, interval.low, interval.high)
    if compare == "ratio":
        numbers = (math.exp(numbers[0]), math.exp(numbers[1]), math.exp(numbers[2]))
    text = "{:.3f} [{:.3f}, {:.3f}]" if compare == "ratio" else "{:.4g} [{:.4g}, {:.4g}]"
    sentence = (
        f"{compare} {text.format(*numbers)}, {interval.count} {'pairs' if interval.paired else 'seeds, unpaired'}"
    )
    return tested(interval, sentence, low, high, relative=compare == "ratio", base=base)


def _optional_text(entries: Mapping[str, Node], key: str) -> str | None:
    return typed_yaml.convert(str, entries[key]) if key in entries else None
