"""nGPT, appendix A.4: the overhead of a step, and whether it falls with context and size."""

from itertools import pairwise

from paper_repro.artifacts import intervals, tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.views import View

RATIO = "ratio_ngpt"
UNFUSED = {"implementation": "reference"}
PRINTED = {"ratio_4k": "t4096", "ratio_8k": "t8192"}


class StepTimes(tables.Table):
    def summary(self) -> dict[str, float]:
        found = {}
        for name, context in PRINTED.items():
            places = ({"size": size, "context": context, **UNFUSED} for size in self.artifact.axes["size"].values)
            measured = [list(own.values()) for place in places if (own := self.view.samples(RATIO, place))]
            if measured:
                found[name] = intervals.mean(measured[0])
        return found


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
