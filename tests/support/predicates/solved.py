"""Records on which a claim that is written in YAML holds or fails, found by raising numbers until they fit."""

import itertools
import math
from collections.abc import Iterator

from paper_repro.artifacts import catalogue
from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.claims import (
    HOLDS,
    Claim,
    Close,
    Equal,
    Every,
    Negation,
    Order,
    Place,
    Predicate,
    Side,
    Some,
)
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made, MadeUpView

SCALES = ("cpu", "gpu", "paper", "smoke")
ROUNDS = 300
STEP = 0.05
"""By how much, and by which share, a number is raised beyond what an order asks for, at least."""
SMALLEST = 4
"""How many times the smallest effect that matters it is raised."""
Leaf = tuple[Predicate, Place, bool]
"""An order, a closeness or an equality, its place, and whether it has to hold."""
Spot = tuple[str, frozenset[tuple[str, str]]]
"""A metric or a column, and its place."""


def made_of(name: str, claim: Claim, expected: str) -> MadeUpView:
    """Return a view of the artifact on which the claim has that verdict."""
    artifact = catalogue.load(name)
    for scale in claim.scales or [word for word in (*SCALES, "exact") if word in artifact.scales]:
        places = list(_places(artifact, claim, scale))
        if not places:
            continue
        truth = expected == HOLDS
        every = truth != claim.somewhere
        leaves = [leaf for place in places for leaf in _leaves(claim.predicate, place, truth)]
        if not every:  # one place is enough
            leaves = list(_leaves(claim.predicate, places[0], truth))
        values = _solved(leaves, _step(claim))

        def at(place: made_up.Place, seed: int = 0, values: dict[Spot, float] = values) -> dict[str, float]:
            here = frozenset(place.items())
            return {metric: value for (metric, where), value in values.items() if where == here}

        return made_up.view(name, Made(at, noise=1e-6, counted=at, seeds=(0, 1, 2), scale=scale))
    raise AssertionError(f"{name} {claim.id}: no scale has a place at which it could be judged")


def _places(artifact: Artifact, claim: Claim, scale: str) -> Iterator[Place]:
    """Yield the places over which the claim runs at a scale, where it has all that the claim compares."""
    _, spec = artifact.scale(scale)
    run = {frozenset(key) for key in artifact.points(spec)}
    axes = [claim.only.get(axis, list(artifact.axes[axis].values)) for axis in claim.over]
    for values in itertools.product(*axes):
        place = dict(zip(claim.over, values, strict=True))
        sides = [spot for leaf, at, _ in _leaves(claim.predicate, place, True) for spot in _spots(leaf, at)]
        if all(where in run for _, where in sides):
            yield place


def _leaves(predicate: Predicate, place: Place, truth: bool) -> Iterator[Leaf]:
    """Yield what has to hold, and what must not, for the predicate to be true or false."""
    if isinstance(predicate, Negation):
        yield from _leaves(predicate.part, place, not truth)
    elif isinstance(predicate, Every):
        every = truth != isinstance(predicate, Some)
        for part in predicate.parts if every else predicate.parts[:1]:
            yield from _leaves(part, place, truth)
    else:
        yield predicate, place, truth


def _spots(leaf: Predicate, place: Place) -> list[Spot]:
    sides: list[Side | None] = []
    if isinstance(leaf, Order):
        sides = [leaf.greater, leaf.lesser]
    elif isinstance(leaf, Close):
        sides = [leaf.left, leaf.right]
    elif isinstance(leaf, Equal):
        sides = [leaf.side, leaf.other]
    return [(side.metric, frozenset({**place, **side.place}.items())) for side in sides if side is not None]


def _step(claim: Claim) -> float:
    sizes = (claim.smallest.ratio, claim.smallest.absolute) if claim.smallest is not None else ()
    return max([STEP, *(SMALLEST * size for size in sizes if size is not None)])


def _solved(leaves: list[Leaf], step: float) -> dict[Spot, float]:
    values = {spot: 1.0 for leaf, place, _ in leaves for spot in _spots(leaf, place)}
    for _ in range(ROUNDS):
        raised = [_raised(values, *leaf, step) for leaf in leaves]
        if not any(raised):
            return values
    raise AssertionError(f"no numbers fit: {leaves}")


def _raised(values: dict[Spot, float], leaf: Predicate, place: Place, truth: bool, step: float) -> bool:
    """Raise one number so that the leaf is as it has to be; return whether it was not."""
    spots = _spots(leaf, place)
    if isinstance(leaf, Order):
        greater, lesser = spots
        if not truth:  # the lesser one is the greater one, by the margin
            greater, lesser = lesser, greater
        margin = leaf.margin if truth else -leaf.margin
        if leaf.compare == "ratio":
            factor = 1 + leaf.margin if truth else 1 / (1 + leaf.margin)
            least = values[lesser] * factor * (1 + step / 2)
        else:
            least = values[lesser] + margin + step / 2
        if values[greater] >= least:
            return False
        values[greater] = least + step / 2 * max(1.0, least)
        return True
    if isinstance(leaf, Close):
        one, other = sorted(spots, key=lambda spot: values[spot])
        apart = math.log(values[other] / values[one])
        if (apart <= 0.5 * math.log1p(leaf.within)) if truth else (apart >= 1.5 * math.log1p(leaf.within)):
            return False
        values[other if not truth else one] = values[other] * (1.0 if truth else (1 + leaf.within) ** 2)
        return True
    assert isinstance(leaf, Equal)
    if leaf.other is None:
        assert leaf.value is not None
        wanted = leaf.value + (0 if truth else 1)
        changed, values[spots[0]] = values[spots[0]] != wanted, wanted
        return changed
    if (values[spots[0]] == values[spots[1]]) == truth:
        return False
    values[spots[0]] = values[spots[1]] + (0 if truth else 1)
    return True
