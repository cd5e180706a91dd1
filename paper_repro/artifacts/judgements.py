"""Judgements: the verdict on a claim, the estimates that it rests on, and how parts make a whole.

Each estimate is tested in four directions, each time by a one-sided p-value: that the claim is right (``holds``), that
it is wrong (``fails``), and that it misses or exceeds its threshold by less than the smallest effect that matters
(``no_less``, ``no_more``).  A verdict is given where a p-value lies below ``LEVEL``: half of 5 %, because each verdict
can be wrong on two sides.  The interval of 95 % that a table prints lies on one side of the threshold if and only if
the p-value of that side is below ``LEVEL``.

A claim whose parts must all hold is right if its worst part is.  It holds if every part does, each tested at the whole
level, for all of them have to be wrong at once (an intersection-union test).  It fails if any part does; with k parts
there are k chances of a false one, so these p-values are corrected by Holm's method.  Where one part is enough, the two
change places.  Parts that are exact arithmetic cannot be wrong by chance and do not count among the k.

A part on a model that is not better than its floor (``artifacts.guards``) gives no evidence, as if it were undecided;
where that leaves the whole open, the whole is not judged.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paper_repro.artifacts.intervals import Interval
from paper_repro.base import typed_yaml
from paper_repro.base.durations import duration
from paper_repro.base.typed_yaml import Node

HOLDS, FAILS, UNDECIDED, SMALL = "holds", "fails", "undecided", "no difference"
VERDICTS = (HOLDS, FAILS, SMALL, UNDECIDED)
OTHER_SCALE = "not judged: another scale"
"""Said of a claim that is not made of the scale that was run."""
LEVEL = 0.025
"""The p-value below which a verdict is given; that of an interval of 95 %."""
MOST_SEEDS = 1000
"""Beyond so many more seeds a price says nothing."""


@dataclass(frozen=True)
class Smallest:
    """The smallest effect that matters to a claim, with the reason for it."""

    reason: str
    ratio: float | None = None
    """Relative: 0.02 is 2 % of the smaller side of a ratio, or of what a difference is measured against."""
    absolute: float | None = None
    """In the unit of the difference."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Smallest":
        entries = typed_yaml.entries(node, required=("reason",), optional=("ratio", "absolute"))
        sizes = {name: typed_yaml.convert(float, entries[name]) for name in ("ratio", "absolute") if name in entries}
        if not sizes:
            raise node.error("'smallest' takes 'ratio' (0.02 is 2 %), 'absolute' (in the metric's unit), or both")
        for name, size in sizes.items():
            if size <= 0.0:
                raise entries[name].error(f"the smallest effect that matters is above 0, not {size:g}")
        return cls(typed_yaml.convert(str, entries["reason"]), **sizes)

    def __str__(self) -> str:
        ratio = None if self.ratio is None else f"{100 * self.ratio:g} %"
        return " or ".join(text for text in (ratio, None if self.absolute is None else f"{self.absolute:g}") if text)

    def size(self, tested: "Tested") -> float | None:
        """Return it in the unit of an estimate; None if it gives no size in that unit."""
        if tested.relative:
            return None if self.ratio is None else math.log1p(self.ratio)
        if self.absolute is not None:
            return self.absolute
        return None if self.ratio is None or tested.base is None else self.ratio * abs(tested.base)

    def text(self, tested: "Tested") -> str:
        """Return the one of the two that an estimate is held against, in words."""
        whole = self.absolute is not None and not tested.relative
        size = f"{self.absolute:g}" if whole else f"{100 * (self.ratio or 0.0):g} %"
        return f"{size} or more" + (" from the limit" if tested.has_limit else "")


@dataclass(frozen=True)
class Tested:
    """An estimate with its interval, and the range in which the claim wants it."""

    interval: Interval
    low: float = -math.inf
    high: float = math.inf
    relative: bool = False
    """Whether the estimate is the natural logarithm of a ratio."""
    base: float | None = None
    """What a difference is measured against, such as the mean of the other side."""
    seeds: int | None = None
    """Seeds behind the interval; not given: its count.  0: more seeds would not narrow it."""

    @property
    def has_limit(self) -> bool:
        """Whether the claim allows a difference, or wants one, of a size of its own."""
        return (self.low, self.high) not in ((0.0, math.inf), (-math.inf, 0.0))

    def inside(self, wider: float) -> float:
        """Return the p-value of lying in the range, made wider at both ends."""
        return max(self.interval.above(self.low - wider), self.interval.below(self.high + wider))

    def outside(self, narrower: float) -> float:
        """Return the p-value of lying outside of the range, made narrower at both ends."""
        return min(self.interval.below(self.low + narrower), self.interval.above(self.high - narrower))

    def with_more(self, seeds: int) -> "Tested":
        """Return the same estimate and spread from more seeds."""
        known = self.interval.count if self.seeds is None else self.seeds
        return self if not known else dataclasses.replace(self, interval=self.interval.with_more(seeds, known))


class PValues(NamedTuple):
    """One-sided p-values; 1 where there is no evidence."""

    holds: float = 1.0
    fails: float = 1.0
    no_less: float = 1.0
    """P-value of missing the threshold by less than the smallest effect that matters."""
    no_more: float = 1.0
    """P-value of exceeding it by less."""

    def verdict(self, level: float) -> str:
        """Return the verdict at a level."""
        if self.no_less < level and self.no_more < level:
            return SMALL
        return HOLDS if self.holds < level else FAILS if self.fails < level else UNDECIDED

    def turned(self) -> "PValues":
        """Return those of the negation."""
        return PValues(self.fails, self.holds, self.no_more, self.no_less)

    def times(self, factors: "PValues") -> "PValues":
        return PValues(*(min(1.0, value * factor) for value, factor in zip(self, factors, strict=True)))


_GIVEN = {HOLDS: PValues(0, 1, 0, 1), FAILS: PValues(1, 0, 1, 0), SMALL: PValues(1, 1, 0, 0)}
"""P-values of a verdict without an estimate; any other word has those of ``undecided``."""
_ONCE = PValues(1, 1, 1, 1)
_CORRECTED = {FAILS: (1, 3), HOLDS: (0, 2)}
"""Directions in which one part is enough, as places in ``PValues``, by the verdict of a part that decides the whole."""


@dataclass(frozen=True)
class Judgement:
    """A verdict, the sentence that carries its numbers, and the parts it was put together from."""

    verdict: str
    because: str
    parts: tuple[tuple[str, "Judgement"], ...] = ()
    exact: bool = False
    """Whether it is arithmetic on counts or printed numbers, which chance cannot change."""
    tested: Tested | None = None
    decisive: str = FAILS
    """The verdict of a part that decides the whole."""
    negated: bool = False
    lead: str = ""
    """What stands in front of the count of its parts."""
    remark: str = ""
    """What the other parts change in the verdict of this one."""
    may_pass: bool = False
    """Whether more seeds may show that the model below the floor, because of which it is not judged, is better."""

    size: str = ""
    """The smallest effect that matters, in words, where there is no difference of it."""
    more: int | None = None
    """How many more seeds would decide; None: not known, or it is decided."""
    price: float | None = None
    """Seconds of a processor that they would take."""

    @property
    def word(self) -> str:
        """The verdict as a table prints it."""
        if self.verdict == SMALL:
            return f"{SMALL} of {self.size}"
        return f"{self.verdict} (exact)" if self.verdict in (HOLDS, FAILS) and self.is_exact else self.verdict

    @property
    def reason(self) -> str:
        """What the verdict rests on, as a table prints it."""
        return reason(self.because, self.remark, self.more, self.price)

    @property
    def is_exact(self) -> bool:
        """Whether chance can change none of it."""
        return all(part.is_exact for _, part in self.parts) if self.parts else self.exact

    @property
    def is_open(self) -> bool:
        """Whether more seeds may change the verdict: it is undecided, or each part that is not judged may pass its
        floor.
        """
        if self.verdict in VERDICTS:
            return self.verdict == UNDECIDED
        parts = [part for _, part in self.parts if part.verdict not in VERDICTS]
        return all(part.is_open for part in parts) if parts else self.may_pass

    def leaves(self) -> list["Judgement"]:
        """Return the parts that have no parts."""
        return [leaf for _, part in self.parts for leaf in part.leaves()] if self.parts else [self]


def reason(because: str, remark: str, more: int | None, price: float | None) -> str:
    """Write what a verdict rests on, its remark, and the seeds and seconds of a processor that would decide it."""
    wanted = ""
    if more is not None:
        cost = "" if price is None else f", {duration(price)} of a processor"
        wanted = f"about {more} more {'seed' if more == 1 else 'seeds'} would decide{cost}"
    return "; ".join(text for text in (because, remark, wanted) if text)


def exactly(right: bool, because: str) -> Judgement:
    """Judge by arithmetic on counts or printed numbers."""
    return Judgement(HOLDS if right else FAILS, because, exact=True)


def tested(
    interval: Interval,
    because: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    relative: bool = False,
    base: float | None = None,
    seeds: int | None = None,
) -> Judgement:
    """Judge whether an estimate lies above ``low`` and below ``high``, by its interval; see ``Tested``.

    Undecided are one seed, and values without a spread: neither has an interval.
    """
    if interval.count < 2:
        return Judgement(UNDECIDED, "one seed: not judged")
    if not interval.has_spread:
        value = math.exp(interval.mean) if relative else interval.mean
        return Judgement(UNDECIDED, f"{value:.4g} in each of {interval.count}: without a spread there is no interval")
    return settle(Judgement(UNDECIDED, because, tested=Tested(interval, low, high, relative, base, seeds)))


def combine(parts: Sequence[tuple[str, Judgement]], decisive: str, otherwise: str, lead: str = "") -> Judgement:
    """Combine parts that must all hold (decisive ``fails``) or of which one is enough (decisive ``holds``)."""
    assert {decisive, otherwise} == {HOLDS, FAILS} and parts
    return settle(Judgement(UNDECIDED, "", tuple(parts), decisive=decisive, lead=lead))


def negate(inner: Judgement) -> Judgement:
    """Return the judgement of the opposite."""
    turned = {HOLDS: FAILS, FAILS: HOLDS}
    return dataclasses.replace(inner, verdict=turned.get(inner.verdict, inner.verdict), negated=not inner.negated)


def supported(judgement: Judgement) -> Judgement:
    """Return the judgement without verdicts that rest neither on an interval nor on exact arithmetic."""
    parts = tuple((label, supported(part)) for label, part in judgement.parts)
    rule = not parts and judgement.verdict in _GIVEN and judgement.tested is None and not judgement.exact
    if not rule:
        return dataclasses.replace(judgement, parts=parts)
    return Judgement(UNDECIDED, f"no interval ({judgement.because})")


def settle(judgement: Judgement, smallest: Smallest | None = None, level: float = LEVEL) -> Judgement:
    """Return the judgement with the verdicts of the whole and of its parts at a level.

    Args:
        judgement: with its estimates.
        smallest: the effect below which there is "no difference"; None: that verdict is not given.
        level: of the p-values.
    """
    return _named(judgement, smallest, _ONCE, level)


def more_seeds(judgement: Judgement, smallest: Smallest | None = None, level: float = LEVEL) -> int | None:
    """Return how many more seeds would decide if means and spreads stay as they are; None: ``MOST_SEEDS`` would not."""

    def decided(seeds: int) -> bool:
        return would_decide(judgement, seeds, smallest, level)

    low, high = 0, 1
    while not decided(high):
        if high == MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return high


def would_decide(judgement: Judgement, seeds: int, smallest: Smallest | None = None, level: float = LEVEL) -> bool:
    """Return whether so many more seeds would decide if means and spreads stay as they are."""
    return _p_values(_grown(judgement, seeds), smallest, level).verdict(level) != UNDECIDED


def _grown(judgement: Judgement, seeds: int) -> Judgement:
    parts = tuple((label, _grown(part, seeds)) for label, part in judgement.parts)
    estimate = judgement.tested and judgement.tested.with_more(seeds)
    return dataclasses.replace(judgement, parts=parts, tested=estimate)


def _p_values(judgement: Judgement, smallest: Smallest | None, level: float) -> PValues:
    if judgement.parts:
        parts = [(_p_values(part, smallest, level), part.is_exact) for _, part in judgement.parts]
        found = _joined(parts, judgement.decisive)
    elif judgement.tested is not None:
        found = _of_estimate(judgement.tested, smallest, level)
    else:
        return _GIVEN.get(judgement.verdict, PValues())
    return found.turned() if judgement.negated else found


def _of_estimate(estimate: Tested, smallest: Smallest | None, level: float) -> PValues:
    found = PValues(estimate.inside(0.0), estimate.outside(0.0))
    size = None if smallest is None else smallest.size(estimate)
    if size is None:
        return found
    if estimate.has_limit and min(found.holds, found.fails) < level:
        size = 0.0  # a verdict on the claim's own limit stands, however near to the limit
    return found._replace(no_less=estimate.inside(size), no_more=estimate.outside(size))


def _joined(parts: Sequence[tuple[PValues, bool]], decisive: str) -> PValues:
    """Return the p-values of a whole: the largest where all parts must agree, Holm's smallest where one is enough."""
    chance = [not exact for _, exact in parts]
    columns = enumerate(zip(*(found for found, _ in parts), strict=True))
    return PValues(*(min(holm(one, chance)) if index in _CORRECTED[decisive] else max(one) for index, one in columns))


def holm(values: Sequence[float], chance: Sequence[bool]) -> list[float]:
    """Return p-values corrected by Holm's method; those without ``chance`` are arithmetic and stay as they are."""
    found, highest = list(values), 0.0
    order = sorted((index for index in range(len(values)) if chance[index]), key=lambda index: values[index])
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * values[index]))
        found[index] = highest
    return found


def _named(judgement: Judgement, smallest: Smallest | None, factors: PValues, level: float) -> Judgement:
    """Return the judgement with its words.

    Args:
        judgement: with its estimates.
        smallest: see ``settle``.
        factors: by which the p-values of a part are multiplied because of the parts beside it.
        level: of the p-values.
    """
    values = _p_values(judgement, smallest, level)
    verdict = values.times(factors).verdict(level)
    if not judgement.parts:
        if judgement.tested is None:
            return judgement
        alone = values.verdict(level)
        remark = "" if verdict == alone else f"alone it would be '{alone}', beside the other parts it is not decided"
        size = smallest.text(judgement.tested) if smallest is not None and verdict == SMALL else ""
        return dataclasses.replace(judgement, verdict=verdict, remark=remark, size=size)
    if judgement.negated:
        factors = factors.turned()
    parts = [
        (label, _named(part, smallest, more, level))
        for (label, part), more in zip(judgement.parts, _factors(judgement, smallest, factors, level), strict=True)
    ]
    found = [part.verdict for _, part in parts]
    others = [word for word in dict.fromkeys(found) if word not in VERDICTS]
    if verdict == UNDECIDED and others:
        verdict = others[0]  # such as "not judged", which goes before "undecided"
    counts = {word: found.count(word) for word in (*VERDICTS, *others)}
    because = judgement.lead + ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    sizes = dict.fromkeys(part.size for _, part in parts if part.size) if verdict == SMALL else {}
    return dataclasses.replace(judgement, verdict=verdict, because=because, parts=tuple(parts), size=" or ".join(sizes))


def _factors(judgement: Judgement, smallest: Smallest | None, outer: PValues, level: float) -> list[PValues]:
    """Return by what each part's p-values are multiplied, in the directions in which one part is enough."""
    found = [_p_values(part, smallest, level) for _, part in judgement.parts]
    chance = [not part.is_exact for _, part in judgement.parts]
    columns = []
    for index, column in enumerate(zip(*found, strict=True)):
        own = holm(column, chance) if index in _CORRECTED[judgement.decisive] else list(column)
        columns.append([outer[index] * (new / old if old else 1.0) for new, old in zip(own, column, strict=True)])
    return [PValues(*row) for row in zip(*columns, strict=True)]
