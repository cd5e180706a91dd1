"""The verdict on a claim at the looks that were planned, and what it would take to decide it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paper_repro.artifacts import claims, looks
from paper_repro.artifacts.judgements import LEVEL, UNDECIDED, Judgement, more_seeds, would_decide
from paper_repro.artifacts.views import Point, View
from paper_repro.base.durations import duration
from paper_repro.cells.planned import Key
from paper_repro.cells.records import Record

NO_LOOK = "if means and spreads stay as they are, no planned look decides it"


@dataclass(frozen=True)
class Watched(View):
    """A view that notes whose records are read."""

    read: set[Key] = field(default_factory=set)

    def _judged(self, point: Point) -> dict[int, Record]:
        self.read.add(point.key)
        return super()._judged(point)

    def counted(self, name: str, place: Mapping[str, str]) -> float | None:
        """Return a column's value, which is no measurement."""
        before = set(self.read)
        found = super().counted(name, place)
        self.read.intersection_update(before)
        return found


@dataclass(frozen=True)
class Decision:
    """A claim at its last look."""

    judgement: Judgement
    read: frozenset[Key]
    """The points whose records it rests on."""
    look: int | None = None
    """How many seeds were looked at; None where no looks are planned, or the first cannot be taken yet."""
    following: int | None = None
    """How many seeds the next look has; None if it is decided, not judged for good, or no look is left."""


def judge(claim: claims.Claim, view: View) -> Judgement:
    """Judge a claim at its last look, with the seeds that it lacks and their price where it is undecided."""
    return decide(claim, view).judgement


def decide(claim: claims.Claim, view: View) -> Decision:
    """Judge a claim at one planned look after the other, until one decides it or no further one can be taken.

    Not judged at one look, because a model is not better than its floor, it may be judged at the next, where the model
    may be (``Judgement.is_open``): models are held against their floors anew at each look.
    """
    planned, first = view.plan.scale.looks, view.plan.scale.seeds
    if not planned or view.plan.altered or not claim.is_of(view.scale_name):
        found = _at(claim, view, LEVEL)
        more, price = _wanted(found, claim, view, LEVEL)
        return dataclasses.replace(found, judgement=dataclasses.replace(found.judgement, more=more, price=price))
    if reason := looks.refuse_unplanned(planned, first, view.plan.seeds):
        return Decision(Judgement(UNDECIDED, reason), frozenset())
    found = Decision(Judgement(UNDECIDED, f"not judged before {planned[0]} seeds"), frozenset())
    each = list(zip(planned, looks.levels(planned), strict=True))
    for number, (count, level) in enumerate(each):
        seeds = looks.seeds_of(first, count)
        here = _at(claim, _limited(view, seeds), level)
        if not here.read and any(leaf.tested for leaf in here.judgement.leaves()):
            return _at(claim, view, LEVEL)  # of printed numbers: no seed changes it, and it is judged once
        if any(not set(seeds) <= _seeds_with_results(view, key) for key in here.read & view.points.keys()):
            if not number and here.judgement.verdict == UNDECIDED:
                found = here  # it says what has not been run
            return dataclasses.replace(_priced(found, claim, view, each[number:]), following=count)
        if here.judgement.is_exact:
            return dataclasses.replace(here, look=count)
        note = f"look {number + 1} of {len(planned)}, {count} seeds, p below {level:.4g}"
        found = Decision(_remarked(here.judgement, note), here.read, count)
        if not found.judgement.is_open:
            return found
    note = "no further look is planned" + _beyond_the_plan(found, claim, view, each[-1][1])
    return dataclasses.replace(found, judgement=_remarked(_closed(found.judgement), note))


def _seeds_with_results(view: View, key: Key) -> set[int]:
    """Return the seeds that finished or diverged; one that crashed is run again."""
    return {seed for seed, record in view.judged(view.points[key]).items() if record.done}


def _priced(found: Decision, claim: claims.Claim, view: View, later: Sequence[tuple[int, float]]) -> Decision:
    """Give a decision the seeds up to the first look that would decide it, each at its own level, and their price.

    Other numbers of seeds are no looks, so that nobody may judge by them.

    Args:
        found: of the last look that was taken.
        later: seeds and level of the looks that are left.
    """
    judgement = found.judgement
    if found.look is None or judgement.verdict != UNDECIDED or not any(leaf.tested for leaf in judgement.leaves()):
        return found
    for count, level in later:
        more = count - found.look
        if would_decide(judgement, more, claim.smallest, level):
            price = more * seconds_of_a_seed(view, found.read)
            return dataclasses.replace(found, judgement=dataclasses.replace(judgement, more=more, price=price))
    note = NO_LOOK + _beyond_the_plan(found, claim, view, later[-1][1])
    return dataclasses.replace(found, judgement=_remarked(judgement, note))


def _wanted(found: Decision, claim: claims.Claim, view: View, level: float) -> tuple[int | None, float | None]:
    """Return how many more seeds would decide at a level, and their seconds of a processor; None: nobody can say."""
    judgement = found.judgement
    if judgement.verdict != UNDECIDED or not any(leaf.tested for leaf in judgement.leaves()):
        return None, None
    more = more_seeds(judgement, claim.smallest, level)
    return more, None if more is None else more * seconds_of_a_seed(view, found.read)


def _beyond_the_plan(found: Decision, claim: claims.Claim, view: View, level: float) -> str:
    """Say how many more seeds would decide at the level of the last look, and what they cost; nobody may take them."""
    more, price = _wanted(found, claim, view, level)
    return "" if price is None else f" (it would take about {more} more, {duration(price)} of a processor)"


def _closed(judgement: Judgement) -> Judgement:
    """Return the judgement without what more seeds would change: nobody may take them."""
    parts = tuple((label, _closed(part)) for label, part in judgement.parts)
    return dataclasses.replace(judgement, parts=parts, more=None, price=None, may_pass=False)


def _remarked(judgement: Judgement, note: str) -> Judgement:
    return dataclasses.replace(judgement, remark="; ".join(filter(None, (judgement.remark, note))))


def _at(claim: claims.Claim, view: View, level: float) -> Decision:
    watched = Watched(**{field.name: getattr(view, field.name) for field in dataclasses.fields(view)})
    judgement = claims.judge(claim, watched, level)
    return Decision(judgement, frozenset(watched.read))


def seconds_of_a_seed(view: View, read: frozenset[Key]) -> float:
    """Return the seconds that one more seed of these points takes, by their records."""
    total = 0.0
    for key in read & view.points.keys():
        known = [record.seconds for record in view.judged(view.points[key]).values() if record.seconds is not None]
        total += sum(known) / len(known) if known else 0.0
    return total


def _limited(view: View, seeds: Sequence[int]) -> View:
    """Return the view of these seeds alone."""

    def kept(found: dict[int, Record]) -> dict[int, Record]:
        return {seed: record for seed, record in found.items() if seed in seeds}

    points = {
        key: dataclasses.replace(
            point,
            cells={seed: cell for seed, cell in point.cells.items() if seed in seeds},
            own=kept(point.own),
            reference=kept(point.reference),
        )
        for key, point in view.points.items()
    }
    return dataclasses.replace(view, points=points)
