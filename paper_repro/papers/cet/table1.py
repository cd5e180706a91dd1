"""CET, Table 1: the order of the estimate, and which precision its relaxation bears."""

from collections.abc import Callable, Sequence

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, Place
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
    return _each(view, [EP], "estimate_order", lambda order: abs(order - ORDER) <= SLACK, text)


def judge_bfloat16_suffices(view: View) -> Judgement:
    text = f"cosine, above {COSINE:g} suffices"
    places = [place for place in map(dict, view.points) if place["method"] in METHODS]
    return _each(view, places, "gradient_cosine_bfloat16", lambda cosine: cosine > COSINE, text)


def _each(view: View, places: Sequence[Place], metric: str, good: Callable[[float], bool], text: str) -> Judgement:
    """Return whether a number is as claimed in every cell of the places."""
    found = [value for place in places for value in view.samples(metric, place).values()]
    if not found:
        absences = dict.fromkeys(view.absence(metric, place) for place in places)
        return Judgement(UNDECIDED, ", ".join(absences) or "not run")
    verdict = HOLDS if all(map(good, found)) else FAILS
    return Judgement(verdict, f"{text}: {min(found):.5g} to {max(found):.5g} over {len(found)} models")
