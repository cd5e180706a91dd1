"""nGPT, appendix A.4: the overhead of a step, and whether it falls with context and size."""

import math
from itertools import pairwise

from paper_repro.artifacts import intervals, tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.views import View
from paper_repro.papers.ngpt.inspection import within

RATIO = "ratio_ngpt"
UNFUSED, FUSED = {"implementation": "reference"}, {"implementation": "auto"}
PRINTED = {"ratio_4k": "t4096", "ratio_8k": "t8192"}
PRINTED_RANGE = (1.5, 1.9)
"""The printed 1.6 to 1.8, which are given as approximate, with a tenth on either side."""
FUSED_LIMIT = 1.15
"""Up to which a step of fused operations counts as reduced; ours, the paper names no number."""


class StepTimes(tables.Table):
    def summary(self) -> dict[str, float]:
        found = {}
        for name, context in PRINTED.items():
            places = ({"size": size, "context": context, **UNFUSED} for size in self.artifact.axes["size"].values)
            measured = [list(own.values()) for place in places if (own := self.view.samples(RATIO, place))]
            if measured:
                found[name] = intervals.mean(measured[0])
        return found


def judge_step_overhead(view: View) -> Judgement:
    """Judge whether the ratio lies in the printed range, at every size and the paper's two contexts; not fused."""
    return _everywhere(view, UNFUSED, *PRINTED_RANGE, contexts=list(PRINTED.values()))


def judge_step_takes_longer(view: View) -> Judgement:
    """Judge whether the ratio is above 1, at every size and context; not fused."""
    return _everywhere(view, UNFUSED, low=1.0)


def judge_step_overhead_fused(view: View) -> Judgement:
    """Judge whether the ratio is at most 1.15, at every size and context; fused."""
    return _everywhere(view, FUSED, high=FUSED_LIMIT)


def _everywhere(
    view: View,
    implementation: dict[str, str],
    low: float = 0.0,
    high: float = math.inf,
    contexts: list[str] | None = None,
) -> Judgement:
    """Judge whether the ratio lies in [low, high] at every size and context of the scale, or at those contexts."""
    axes, parts = view.artifact.axes, []
    for size, spec in axes["size"].values.items():
        for context in contexts or list(axes["context"].values):
            place = {"size": size, "context": context, **implementation}
            if view.covers(place):
                label = f"{spec.label}, {axes['context'].values[context].label}"
                parts.append((label, within(view, RATIO, place, low, high, ratio=True)))
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "the scale has no such cells")


def judge_overhead_falls_with_context(view: View) -> Judgement:
    return _falls(view, "context", "size")


def judge_overhead_falls_with_size(view: View) -> Judgement:
    return _falls(view, "size", "context")


def _falls(view: View, axis: str, other: str) -> Judgement:
    """Judge whether the ratio falls from each value of ``axis`` to the next that the scale runs, at every value of
    ``other``; not fused.
    """
    axes, parts = view.artifact.axes, []
    for fixed, spec in axes[other].values.items():
        places = [{other: fixed, axis: value, **UNFUSED} for value in axes[axis].values]
        for smaller, larger in pairwise(place for place in places if view.covers(place)):
            labels = [axes[axis].values[place[axis]].label for place in (smaller, larger)]
            parts.append((f"{spec.label}: {' to '.join(labels)}", _less(view, larger, smaller)))
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "the scale has one value only")


def _less(view: View, larger: dict[str, str], smaller: dict[str, str]) -> Judgement:
    found, before = view.samples(RATIO, larger), view.samples(RATIO, smaller)
    if not found or not before:
        return Judgement(UNDECIDED, view.absence(RATIO, smaller if found else larger))
    interval = intervals.compare(found, before)
    numbers = f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
    base = intervals.mean(list(before.values()))
    return tested(interval, f"change of the ratio {numbers}, {interval.count} repetitions", high=0.0, base=base)
