"""Whether the lowest loss of a sweep lies inside its grid."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paper_repro.artifacts import intervals
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.judgements import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.names import Names, Place, Side
from paper_repro.base import typed_yaml
from paper_repro.base.errors import nearest
from paper_repro.base.typed_yaml import Node

if TYPE_CHECKING:
    from paper_repro.artifacts.views import View

Sweep = Mapping[float, Mapping[int, float]]
"""Losses by seed, by the setting that is swept."""
FEWEST_SETTINGS = 3


@dataclass(frozen=True)
class Bracketed:
    """The value of an axis at which a loss is lowest lies inside its grid, as a learning rate should."""

    side: Side
    """The loss, which is above 0, and values of the other axes."""
    axis: str
    by: str
    """The column whose numbers order the values of the axis."""

    @classmethod
    def from_yaml(cls, node: Node) -> "Bracketed":
        entries = typed_yaml.entries(node, required=("metric", "axis", "by"), optional=("at",))
        metric, axis, by = (typed_yaml.convert(str, entries[name]) for name in ("metric", "axis", "by"))
        return cls(Side.read(entries["at"], metric) if "at" in entries else Side(metric, {}), axis, by)

    def judge(self, view: "View", place: Place) -> Judgement:
        wanted = {**place, **self.side.place}.items()
        found = [own for own in map(dict, view.points) if wanted <= own.items()]
        plain = view.unwatched()
        finished = [own for own in found if plain.samples(self.side.metric, own) or plain.lost(self.side.metric, own)]
        places = {view.counted(self.by, own) or 0.0: own for own in finished}
        if len(places) < len(finished):
            return Judgement(UNDECIDED, f"column '{self.by}' is the same at several values of axis '{self.axis}'")
        return best_is_inside(view, self.side.metric, places)

    def problems(self, names: Names) -> Iterator[str]:
        values = list(names.axes[self.axis].values) if self.axis in names.axes else [""]
        yield from names.metric_problems(Side(self.side.metric, {**self.side.place, self.axis: values[0]}))
        if self.axis in names.axes and len(values) < FEWEST_SETTINGS:
            yield f"axis '{self.axis}' has {len(values)} values, a grid with an inside at least {FEWEST_SETTINGS}"
        if self.by not in names.columns:
            yield f"unknown column '{self.by}'{nearest(self.by, names.columns)}"
        yield from names.size_problems(True)


def best_is_inside(view: "View", metric: str, places: Mapping[float, Mapping[str, str]]) -> Judgement:
    """Judge whether the best of a model's settings lies inside the grid, see ``bracketed``.

    Of the whole grid the best setting alone has to be below the floor.

    Args:
        metric: the losses.
        places: where each setting that finished stands in the artifact.
    """
    plain = view.unwatched()
    lost = {setting: len(seeds) for setting, place in places.items() if (seeds := plain.lost(metric, place))}
    sweep = {setting: plain.samples(metric, place) for setting, place in sorted(places.items()) if setting not in lost}
    if len(sweep) + len(lost) < FEWEST_SETTINGS or not sweep:
        return Judgement(UNDECIDED, f"fewer than {FEWEST_SETTINGS} settings finished")
    means = {setting: intervals.mean(list(losses.values())) for setting, losses in sweep.items()}
    best = min(means, key=lambda setting: means[setting])
    grid = ", ".join(f"{setting:g}: {loss:.4f}" for setting, loss in means.items())

    def judge(view: "View") -> Judgement:
        view.samples(metric, places[best])
        return bracketed(sweep, f"best of the grid {best:g} ({grid})", lost)

    judged: Judgement = guarded(view, judge)
    return judged


def bracketed(sweep: Sweep, text: str, lost: Mapping[float, int] | None = None) -> Judgement:
    """Judge whether, for each edge of the grid, some setting between the edges has the lower loss.

    Each comparison is the interval of the log ratio of two settings' losses over seeds.  It holds for an edge if it
    holds at one inner setting, and it fails if the edge is below all of them.

    Args:
        sweep: settings with losses above 0; with ``lost`` they are ``FEWEST_SETTINGS`` or more.
        text: what stands in front of the verdicts on both edges, such as where the lowest mean is.
        lost: settings at which seeds diverged, and how many: their mean loss is infinite, so that all others are below
            it.
    """
    lost = lost or {}
    settings = sorted({*sweep, *lost})
    if any(loss <= 0 for losses in sweep.values() for loss in losses.values()):
        return Judgement(UNDECIDED, "a ratio needs positive values")
    logs = {setting: {seed: math.log(loss) for seed, loss in losses.items()} for setting, losses in sweep.items()}
    edges = []
    for edge in (settings[0], settings[-1]):
        if edge in lost:
            part = Judgement(HOLDS, f"{lost[edge]} of its seeds diverged", exact=True)
            edges.append((f"all are better than {edge:g}", part))
            continue
        inner = []
        for setting in (one for one in settings[1:-1] if one in sweep):
            found = intervals.compare(logs[edge], logs[setting])
            numbers = "{:.3f} [{:.3f}, {:.3f}]".format(*map(math.exp, (found.mean, found.low, found.high)))
            inner.append((f"{setting:g}", tested(found, f"ratio {numbers}", 0.0, relative=True)))
        whole = combine(inner, HOLDS, FAILS) if inner else Judgement(UNDECIDED, "no setting between the edges trained")
        edges.append((f"some setting is better than {edge:g}", whole))
    return combine(edges, FAILS, HOLDS, f"{text}; edges: ")
