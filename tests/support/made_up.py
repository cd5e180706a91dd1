"""Views of real artifacts with records that are made up, in memory, for tests of estimates."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from paper_repro.base.errors import RESULTS
from paper_repro.cells.planned import Key, PlannedCell
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED
from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tables import view as views
from paper_repro.tables.claims import Contrast, Estimate
from paper_repro.tables.plan import Plan
from paper_repro.tables.spec import EXACT
from paper_repro.tables.view import Point, View, with_derived

Place = Mapping[str, str]
Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Made:
    """What the records of an artifact are made up of; every function gets a place and a seed.

    Args:
        metrics: of the finished cell there.
        noise: by which share of itself a number differs from what is given, at most; the same for every call.
        files: what lies beside the record.
        curves: losses while it trained: pairs of step and value.
        parameters: of the model there.
        known: whether ``metrics`` are changes of what the committed record of an exact artifact has.
        seeds: others than the scale's.
        scale: another than ``cpu``, or for an exact artifact ``exact``.
    """

    metrics: Callable[[Place, int], Numbers] = lambda place, seed: {}
    noise: float = 1e-6
    files: Callable[[Place, int], Mapping[str, bytes]] = lambda place, seed: {}
    curves: Callable[[Place, int], Mapping[str, Sequence[tuple[int, float]]]] = lambda place, seed: {}
    parameters: Callable[[Place], int] = lambda place: 1000
    known: bool = False
    seeds: tuple[int, ...] | None = None
    scale: str = "cpu"


@dataclass(frozen=True)
class MadeUpView(View):
    """A view whose records, files and printed numbers are made up, and without baselines."""

    files: Mapping[tuple[Key, int], Mapping[str, bytes]] = field(default_factory=dict)

    def attachments(self, name: str, place: Place) -> dict[int, bytes]:
        key = self.point(place).key
        return {seed: own[name] for (at, seed), own in sorted(self.files.items(), key=str) if at == key and name in own}


def view(artifact: str, made: Made) -> MadeUpView:
    """Return a view of an artifact of the catalogue."""
    plan = _plan(artifact, made.scale, made.seeds)
    points: dict[Key, Point] = {}
    files = {}
    for cell in plan.cells:
        point = points.setdefault(cell.key, Point(cell.key, {}, {}, {}))
        point.cells[cell.seed] = cell
        point.own[cell.seed] = with_derived(_record(artifact, cell, made, plan), plan.artifact.metrics)
        files[cell.key, cell.seed] = made.files(dict(cell.key), cell.seed)
    return MadeUpView(plan, points, Path("runs"), None, files=files)


def without(found: MadeUpView) -> MadeUpView:
    """Return the view with its plan and without any record."""
    points = {key: replace(point, own={}) for key, point in found.points.items()}
    return replace(found, points=points, files={})


def estimate(found: View, claim: str) -> Estimate:
    """Return the estimate of a claim of the view's artifact."""
    (one,) = (one for one in found.artifact.claims if one.id == claim)
    function = one.form.estimate if isinstance(one.form, Contrast) else found.artifact.function(one.form, one.line)
    result: Estimate = function(found)
    return result


def value(found: Estimate) -> float:
    """Return an estimate as it is printed."""
    assert found.interval is not None, found.because
    return found.shown(found.interval.mean)


def estimated(artifact: str, claim: str, made: Made) -> float:
    """Return the estimate of a claim on made-up records, as it is printed."""
    return value(estimate(view(artifact, made), claim))


@cache
def _plan(artifact: str, scale: str, seeds: tuple[int, ...] | None) -> Plan:
    return plans.make(spec.load(artifact), scale, seeds)


@cache
def _committed(artifact: str) -> dict[tuple[Key, int], Numbers]:
    plan = _plan(artifact, "cpu", None)
    found = views.build(plan, RESULTS, None)
    return {(key, seed): own.metrics for key, point in found.points.items() for seed, own in point.own.items()}


def _record(artifact: str, cell: PlannedCell, made: Made, plan: Plan) -> Record:
    assert not made.known or plan.scale_name == EXACT
    place = dict(cell.key)
    known = dict(_committed(artifact).get((cell.key, cell.seed), {})) if made.known else {}
    metrics = known | {
        name: value * (1 + made.noise * random.Random(f"{artifact} {place} {cell.seed} {name}").uniform(-1, 1))
        for name, value in made.metrics(place, cell.seed).items()
    }
    curves = {
        name: {"step": [float(step) for step, _ in points], "value": [value for _, value in points]}
        for name, points in made.curves(place, cell.seed).items()
    }
    return Record(cell.id, FINISHED, cell.seed, {}, metrics, curves, made.parameters(place), 1000, 1.0, None, "")
