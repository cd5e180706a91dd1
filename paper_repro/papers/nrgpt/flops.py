"""NRGPT, appendix D: the paper's sentences on the FLOPs of a recurrence, judged from the counts of
``probes.block_cost``.
"""

from collections.abc import Sequence
from itertools import pairwise

from paper_repro.artifacts import tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly
from paper_repro.artifacts.views import View

ABOUT = 0.1
"""Relative; what "approximately" and "~2x" are taken to allow, the paper names no number."""
FEED_FORWARD_MACS = {"rgpt": (0, 2), "rgpt_parallel": (0, 2), "ff1": (0, 2), "ff2w": (0, 4), "ff2": (2, 2)}
"""Multiply-adds of the feed-forward part per token, as multiples of D^2 and of D M."""


def flops_by_formula(kind: str, width: int, heads: int, window: int, hidden_factor: int = 4) -> int:
    """Count the FLOPs of one recurrence on one sequence, with M = f D and N = T - 1 keys under the strict mask.

    RGPT: ``8 T D^2 + 4 T^2 D + 4 T D M``.  NRGPT: ``2 N H D^2 + 4 N^2 H D + 2 T D^2`` of attention and eta, and of the
    feed-forward part ``4 T D M`` (FF1), ``8 T D M`` (FF2W) or ``4 T D^2 + 4 T D M`` (FF2).  Appendix D compares
    them in words and prints no formula.
    """
    square, by_hidden = FEED_FORWARD_MACS[kind]
    feed_forward = 2 * window * (square * width**2 + by_hidden * hidden_factor * width**2)
    if kind.startswith("rgpt"):
        return 8 * window * width**2 + 4 * window**2 * width + feed_forward
    keys = window - 1
    return 2 * keys * heads * width**2 + 4 * keys**2 * heads * width + 2 * window * width**2 + feed_forward


PAIRS: dict[str, tuple[int, int, tuple[str, int, int], tuple[str, int, int]]] = {
    "table5": (1024, 4, ("ff2w", 1536, 12), ("rgpt_parallel", 1740, 12)),
    "table2": (1024, 4, ("ff2w", 768, 12), ("rgpt_parallel", 768, 12)),
    "table4": (256, 4, ("ff2w", 128, 1), ("rgpt_parallel", 128, 1)),
}
"""Models that the paper puts side by side: window, M / D, and NRGPT's and RGPT-parallel's (kind, width, heads)."""


class Flops(tables.Table):
    def summary(self) -> dict[str, float]:
        found = {}
        for name, (window, factor, own, baseline) in PAIRS.items():
            found[f"ratio_{name}"] = flops_by_formula(own[0], own[1], own[2], window, factor) / flops_by_formula(
                baseline[0], baseline[1], baseline[2], window, factor
            )
        width, heads, window = 768, 12, 1024
        scores, maps = 4 * window * (heads - 1) * width, 2 * (heads - 1) * width**2
        return found | {"score_share": 100 * scores / (scores + maps)}


def judge_flops_1_to_2(view: View) -> Judgement:
    return _one_to_two(view, list(view.artifact.axes["heads"].values))


def judge_flops_1_to_2_one_head(view: View) -> Judgement:
    return _one_to_two(view, ["h1"])


def _one_to_two(view: View, heads: Sequence[str]) -> Judgement:
    """Judge the paper's variants, FF1 with 8D and FF2W, at equal parameters: the ratio lies in 0.95 to 2.05, one digit
    after the point.
    """
    parts = []
    for model in ("ff1_8d", "ff2w"):
        for head in heads:
            for window in view.artifact.axes["window"].values:
                place = {"parameters": "equal", "heads": head, "window": window, "model": model}
                parts.append(_within(view, place, "ratio", 0.95, 2.05))
    return combine(parts, FAILS, HOLDS)


def judge_one_head_attention_about_the_same(view: View) -> Judgement:
    return _one_head_attention(view, 1 - ABOUT, 1 + ABOUT)


def judge_one_head_attention_fewer(view: View) -> Judgement:
    return _one_head_attention(view, 0.0, 1.0)


def _one_head_attention(view: View, low: float, high: float) -> Judgement:
    places = (
        {"parameters": "same_width", "heads": "h1", "window": window, "model": "ff2w"}
        for window in view.artifact.axes["window"].values
    )
    return combine([_within(view, place, "attention_ratio", low, high) for place in places], FAILS, HOLDS)


def judge_many_heads_cost_more(view: View) -> Judgement:
    heads = [head for head in view.artifact.axes["heads"].values if head != "h1"]
    places = (
        {"parameters": "same_width", "heads": head, "window": window, "model": "ff2w"}
        for head in heads
        for window in view.artifact.axes["window"].values
    )
    return combine([_within(view, place, "attention_ratio", 1.0, float("inf")) for place in places], FAILS, HOLDS)


def judge_feed_forward_twice(view: View) -> Judgement:
    """Judge the paper's two variants, FF1 also with the 4D of the authors' sweeps."""
    parts = [
        _within(view, _one_head(model), "feed_forward_ratio", 2 - 2 * ABOUT, 2 + 2 * ABOUT)
        for model in ("ff1_4d", "ff1_8d", "ff2w")
    ]
    return combine(parts, FAILS, HOLDS)


def judge_ff1_8d_feed_forward_doubles(view: View) -> Judgement:
    return combine(
        [_within(view, _one_head("ff1_8d"), "feed_forward_ratio", 2 - 2 * ABOUT, 2 + 2 * ABOUT)], FAILS, HOLDS
    )


def judge_heads_add_parameters(view: View) -> Judgement:
    """Judge whether, at the same width, NRGPT's block grows with each head, the recurrent GPTs' does not."""
    parts = []
    for model, spec in view.artifact.axes["model"].values.items():
        counted = []
        for head in view.artifact.axes["heads"].values:
            place = {"parameters": "same_width", "heads": head, "window": "t1024", "model": model}
            counted.append(_only(view, place, "parameters"))
        known = [value for value in counted if value is not None]
        if len(known) < len(counted):
            parts.append((spec.label, Judgement(UNDECIDED, "not run")))
            continue
        steps = list(pairwise(known))
        as_said = all(b > a for a, b in steps) if model.startswith("ff") else all(a == b for a, b in steps)
        text = " -> ".join(f"{value:,.0f}" for value in known)
        parts.append((spec.label, exactly(as_said, text)))
    return combine(parts, FAILS, HOLDS)


def _one_head(model: str) -> dict[str, str]:
    return {"parameters": "same_width", "heads": "h1", "window": "t1024", "model": model}


def _within(view: View, place: dict[str, str], name: str, low: float, high: float) -> tuple[str, Judgement]:
    axes = view.artifact.axes
    label = ", ".join(axes[axis].values[place[axis]].label for axis in ("model", "heads", "window"))
    value = _only(view, place, name)
    if value is None:
        return label, Judgement(UNDECIDED, "not run")
    return label, exactly(low <= value <= high, f"{value:.2f} times")


def _only(view: View, place: dict[str, str], name: str) -> float | None:
    """Return a counted metric; every seed counts the same."""
    return next(iter(view.samples(name, place).values()), None)
