"""nGPT, Table 2: by which way of counting and cutting its numbers of parameters are printed."""

import math
from collections.abc import Callable

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly
from paper_repro.artifacts.views import View

PRINTED = "parameters"
DIGITS = 1
"""After the point, of the printed millions."""


def judge_printed_counts_are_truncated(view: View) -> Judgement:
    return _prints_as(view, PRINTED, math.floor)


def judge_printed_counts_are_rounded(view: View) -> Judgement:
    return _prints_as(view, PRINTED, _round)


def judge_early_counts_are_rounded(view: View) -> Judgement:
    return _prints_as(view, "parameters_counted_early", _round)


def _prints_as(view: View, metric: str, cut: Callable[[float], int]) -> Judgement:
    """Return whether every printed number is a count in millions after ``cut`` of its tenths."""
    parts = []
    for key in view.points:
        label = ", ".join(view.artifact.axes[axis].values[value].label for axis, value in key)
        printed, found = view.printed(key, PRINTED), view.samples(metric, dict(key))
        if printed is None or not found:
            parts.append((label, Judgement(UNDECIDED, "not run")))
            continue
        count = next(iter(found.values()))
        ours = cut(count * 10**DIGITS / view.artifact.metrics[metric].factor)
        same = ours == round(printed.mean * 10**DIGITS)
        text = f"{count:,.0f} gives {ours / 10**DIGITS:.{DIGITS}f}M, printed {printed.mean:.{DIGITS}f}M"
        parts.append((label, exactly(same, text)))
    return combine(parts, FAILS, HOLDS)


def _round(value: float) -> int:
    return math.floor(value + 0.5)
