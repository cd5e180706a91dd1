"""EBT, table 3: whether EBT has the lower perplexity on most of the other sets.

"Most" is judged by the median: of a seed's differences of loss, one on each set, it is below 0 if and only if more
than half of them are.  How many sets these are would be the same in nearly all seeds, and have no interval.
"""

import itertools
import math
import statistics

import numpy as np

from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, combine
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import NOT_RUN, S2, TRANSFORMER
from paper_repro.papers.ebt.thinking import (
    OWN_SETS,
    PAPER_SETS,
    VALIDATION_LOSS,
    Seeds,
    above,
    difference,
)

LOWER, NATS = "lower on most sets by", " nats per token"
EBT, BASELINE = {"model": S2}, {"model": TRANSFORMER}
SHORTER = [{"model": f"{TRANSFORMER}_{share}"} for share in ("half", "quarter", "fifth")]


def judge_ood_generalisation(view: View) -> Judgement:
    """Judge EBT's pretraining perplexity, and by how much its loss is lower on most other sets."""
    worse, lower = _differences(view, VALIDATION_LOSS), _lower_on_most(view, relative=False)
    if not worse or not lower:
        return NOT_RUN
    parts = [
        ("the higher pretraining perplexity", above(worse, what="nats per token more")),
        ("the lower one on most sets", above(lower, what=LOWER, unit=NATS)),
    ]
    return combine(parts, FAILS, HOLDS)


def judge_smaller_shift(view: View) -> Judgement:
    """Judge by how much EBT's ratio of perplexities is smaller on most other sets."""
    return above(_lower_on_most(view, relative=True), what=LOWER, unit=f"{NATS}, less those of pretraining")


def judge_lower_at_equal_pretraining(view: View) -> Judgement:
    """Judge by how much, on most other sets, EBT's loss is below that of a Transformer++ of its pretraining loss."""
    names = [name for name in (*PAPER_SETS, *OWN_SETS) if view.samples(f"{name}_loss", EBT)]
    found: dict[int, list[float]] = {}
    for name in names:
        own = view.samples(f"{name}_loss", EBT)
        for seed, expected in _at_equal_pretraining(view, f"{name}_loss").items():
            found.setdefault(seed, []).append(own[seed] - expected)
    return above({seed: -statistics.median_high(each) for seed, each in found.items()}, what=LOWER, unit=NATS)


def _at_equal_pretraining(view: View, metric: str) -> Seeds:
    """Return Transformer++'s loss on a set at EBT's pretraining loss, interpolated over its own, by seed.

    Of those that train less the two next to EBT are judged, the others only looked at to find these.
    """
    found, plain = {}, view.unwatched()
    known = {place["model"]: plain.samples(VALIDATION_LOSS, place) for place in (BASELINE, *SHORTER)}
    for seed, wanted in view.samples(VALIDATION_LOSS, EBT).items():
        points = sorted((losses[seed], model) for model, losses in known.items() if seed in losses)
        for lower, higher in itertools.pairwise(points):
            if lower[0] <= wanted <= higher[0]:
                each = [view.samples(metric, {"model": model}).get(seed, math.nan) for _, model in (lower, higher)]
                found[seed] = float(np.interp(wanted, [lower[0], higher[0]], each))
                break
    return {seed: loss for seed, loss in found.items() if math.isfinite(loss)}


def _differences(view: View, metric: str) -> Seeds:
    """Return EBT's loss less the baseline's, by seed."""
    return difference(view.samples(metric, EBT), view.samples(metric, BASELINE))


def _lower_on_most(view: View, relative: bool) -> Seeds:
    """Return by how much EBT's loss is lower on more than half of the sets, by seed: the median, the higher of two.

    Args:
        relative: each loss less that of pretraining.
    """
    known = _differences(view, VALIDATION_LOSS)
    each = [_differences(view, f"{name}_loss") for name in (*PAPER_SETS, *OWN_SETS)]
    present = [found for found in each if found]
    return {
        seed: (own if relative else 0.0) - statistics.median_high([found[seed] for found in present])
        for seed, own in known.items()
        if present and all(seed in found for found in present)
    }
