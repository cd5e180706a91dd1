"""CEM, Table 1: by which way of counting and cutting its numbers are printed, and what CEM's parts save."""

import math
from collections.abc import Callable

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly
from paper_repro.artifacts.views import View

PRINTED, TIED = "parameters", "parameters_counted_early"


def judge_printed_counts_are_truncated(view: View) -> Judgement:
    return _prints_as(view, PRINTED, math.floor)


def judge_printed_counts_are_rounded(view: View) -> Judgement:
    return _prints_as(view, PRINTED, lambda millions: math.floor(millions + 0.5))


def judge_printed_counts_are_of_tied_tables(view: View) -> Judgement:
    return _prints_as(view, TIED, math.floor)


def judge_half_of_the_attention(view: View) -> Judgement:
    """Judge whether Llama's count less that with CEM attention is half of 4 D^2 a layer, exactly."""
    return _saves(view, "attention", lambda width, hidden: width * width * 2, "2 D^2 L")


def judge_two_thirds_of_the_mlp(view: View) -> Judgement:
    """Judge whether Llama's count less that with CEM MLPs is a third of 3 D m a layer, exactly."""
    return _saves(view, "mlp", lambda width, hidden: width * hidden, "D m L")


def _prints_as(view: View, metric: str, cut: Callable[[float], int]) -> Judgement:
    """Return whether every printed number is Llama's count in millions after ``cut``."""
    parts = []
    for key in view.points:
        printed, found = view.printed(key, PRINTED), view.samples(metric, dict(key))
        if printed is None:
            continue
        label = ", ".join(view.artifact.axes[axis].values[value].label for axis, value in key)
        if not found:
            parts.append((label, Judgement(UNDECIDED, "not run")))
            continue
        count = next(iter(found.values()))
        ours = cut(count / view.artifact.metrics[metric].factor)
        text = f"{count:,.0f} gives {ours}M, printed {printed.mean:.0f}M"
        parts.append((label, exactly(ours == printed.mean, text)))
    return combine(parts, FAILS, HOLDS)


def _saves(view: View, model: str, a_layer: Callable[[float, float], float], formula: str) -> Judgement:
    parts = []
    for size, spec in view.artifact.axes["size"].values.items():
        counts = [view.samples(PRINTED, {"size": size, "model": name}) for name in ("llama", model)]
        if not all(counts):
            parts.append((spec.label, Judgement(UNDECIDED, "not run")))
            continue
        saved = next(iter(counts[0].values())) - next(iter(counts[1].values()))
        place = {"size": size, "model": "llama"}
        width, hidden, layers = (view.counted(name, place) or 0.0 for name in ("width", "hidden", "layers"))
        wanted = layers * a_layer(width, hidden)
        relation = "=" if saved == wanted else "is not"
        text = f"{saved:,.0f} fewer {relation} {formula} = {wanted:,.0f}"
        parts.append((spec.label, exactly(saved == wanted, text)))
    return combine(parts, FAILS, HOLDS)
