"""CET, Table 1: the order of the estimate, and which precision its relaxation bears."""

import math

from paper_repro.artifacts import intervals
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, Place, combine, tested
from paper_repro.artifacts.views import View
from paper_repro.papers.cet.relaxations import EP

ORDER, SLACK = 2.0, 0.05
"""Tolerance of the slope at the smallest betas, whose next term, beta to the fourth, is some 1e-3 of the
error there.
"""
COSINE = 0.999
METHODS = ("ep", "tbpte")


def judge_ep_second_order(view: View) -> Judgement:
    """Judge the cells of one method; the small models follow from the seed alone, so both methods' cells have
    the same.
    """
    text = f"power of beta, {ORDER:g} within {SLACK:g} is second order"
    return _mean(view, EP, "estimate_order", text, ORDER - SLACK, ORDER + SLACK)


def judge_bfloat16_suffices(view: View) -> Judgement:
    """Judge the trained models of each method, as parts."""
    places = [place for place in map(dict, view.points) if place["method"] in METHODS]
    parts = [
        (
            view.artifact.axes["method"].values[place["method"]].label,
            _mean(view, place, "gradient_cosine_bfloat16", f"cosine, above {COSINE:g} suffices", COSINE),
        )
        for place in places
    ]
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "not run")


def _mean(view: View, place: Place, metric: str, text: str, low: float, high: float = math.inf) -> Judgement:
    """Judge whether a number's mean over models lies within limits."""
    found = view.samples(metric, place)
    if not found:
        return Judgement(UNDECIDED, view.absence(metric, place))
    mean = intervals.of(list(found.values()))
    numbers = f"{mean.mean:.5g} [{mean.low:.5g}, {mean.high:.5g}]"
    return tested(mean, f"{text}: {numbers}, {mean.count} models", low, high)
