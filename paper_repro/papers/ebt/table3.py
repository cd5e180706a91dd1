"""EBT, table 3: on how many other sets EBT has the lower perplexity."""

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

EBT, BASELINE = {"model": S2}, {"model": TRANSFORMER}
SHORTER = [{"model": f"{TRANSFORMER}_{share}"} for share in ("half", "quarter", "tenth")]


def judge_ood_generalisation(view: View) -> Judgement:
    """Judge EBT's pretraining perplexity, and the share of other sets on which its perplexity is the lower."""
    worse, shares = _differences(view, VALIDATION_LOSS), _shares(view, relative=False)
    if not worse or not shares:
        return NOT_RUN
    parts = [
        ("the higher pretraining perplexity", above(worse, what="nats per token more")),
        ("the lower one on most sets", above(shares, 0.5, "share of sets")),
    ]
    return combine(parts, FAILS, HOLDS)


def judge_smaller_shift(view: View) -> Judgement:
    """Judge the share of other sets on which EBT's ratio of perplexities is the smaller."""
    found = _shares(view, relative=True)
    if not found:
        return NOT_RUN
    return above(found, 0.5, "share of sets")


def judge_lower_at_equal_pretraining(view: View) -> Judgement:
    """Judge the share of other sets on which EBT's loss is below that of a Transformer++ of its pretraining loss."""
    names = [name for name in (*PAPER_SETS, *OWN_SETS) if view.samples(f"{name}_loss", EBT)]
    lower: dict[int, list[bool]] = {}
    for name in names:
        own = view.samples(f"{name}_loss", EBT)
        for seed, expected in _at_equal_pretraining(view, f"{name}_loss").items():
            lower.setdefault(seed, []).append(own[seed] < expected)
    if not lower:
        return NOT_RUN
    found = {seed: sum(each) / len(each) for seed, each in lower.items()}
    return above(found, 0.5, "share of sets")


def _at_equal_pretraining(view: View, metric: str) -> Seeds:
    """Return Transformer++'s loss on a set at EBT's pretraining loss, interpolated over its own, by seed."""
    found = {}
    for seed, wanted in view.samples(VALIDATION_LOSS, EBT).items():
        plain = view.unwatched()  # those that train less are a scale, and nothing is claimed of them
        each = [(plain.samples(VALIDATION_LOSS, place), plain.samples(metric, place)) for place in (BASELINE, *SHORTER)]
        points = sorted((known[seed], losses[seed]) for known, losses in each if seed in known and seed in losses)
        if points and points[0][0] <= wanted <= points[-1][0]:
            x, y = np.array(points).T
            found[seed] = float(np.interp(wanted, x, y))
    return found


def _differences(view: View, metric: str) -> Seeds:
    """Return EBT's loss less the baseline's, by seed."""
    return difference(view.samples(metric, EBT), view.samples(metric, BASELINE))


def _shares(view: View, relative: bool) -> Seeds:
    known = _differences(view, VALIDATION_LOSS)
    each = [_differences(view, f"{name}_loss") for name in (*PAPER_SETS, *OWN_SETS)]
    present = [found for found in each if found]
    return {
        seed: sum(found[seed] < (own if relative else 0.0) for found in present) / len(present)
        for seed, own in known.items()
        if present and all(seed in found for found in present)
    }
