"""EBT, table 3: perplexity on sets of other distributions, at equal training and at equal pretraining loss."""

import itertools
import math

import numpy as np

from paper_repro.papers.ebt.learning import S2, TRANSFORMER
from paper_repro.papers.ebt.thinking import OWN_SETS, PAPER_SETS, VALIDATION_LOSS, by_set
from paper_repro.tables import claims
from paper_repro.tables.view import View

EBT, BASELINE = {"model": S2}, {"model": TRANSFORMER}
SHORTER = [{"model": f"{TRANSFORMER}_{share}"} for share in ("half", "quarter", "fifth")]


def estimate_ood_generalisation(view: View) -> claims.Estimate:
    """EBT's perplexity over Transformer++'s, the geometric mean over the other sets."""
    ours, theirs = (
        {name: values for name in (*PAPER_SETS, *OWN_SETS) if (values := view.samples(f"{name}_perplexity", place))}
        for place in (EBT, BASELINE)
    )
    return claims.ratio("perplexity of EBT", "perplexity of Transformer++", by_set(ours, theirs))


def estimate_lower_at_equal_pretraining(view: View) -> claims.Estimate:
    """EBT's perplexity over that of a Transformer++ of its pretraining loss, the geometric mean over the other sets."""
    sides = {}
    for name in (*PAPER_SETS, *OWN_SETS):
        if own := view.samples(f"{name}_perplexity", EBT):
            theirs = _at_equal_pretraining(view, f"{name}_loss")
            sides[name] = {seed: value for seed, value in own.items() if seed in theirs}, theirs
    return claims.ratio("perplexity of EBT", "perplexity of Transformer++ of equal pretraining loss", sides)


def _at_equal_pretraining(view: View, metric: str) -> dict[int, float]:
    """Return Transformer++'s perplexity on a set at EBT's pretraining loss, by seed.

    Its loss is interpolated linearly over its own pretraining loss.  The view notes only the two models next to EBT.
    """
    found, plain = {}, view.unwatched()
    known = {place["model"]: plain.samples(VALIDATION_LOSS, place) for place in (BASELINE, *SHORTER)}
    for seed, wanted in view.samples(VALIDATION_LOSS, EBT).items():
        points = sorted((losses[seed], model) for model, losses in known.items() if seed in losses)
        for lower, higher in itertools.pairwise(points):
            if lower[0] <= wanted <= higher[0]:
                each = [view.samples(metric, {"model": model}).get(seed, math.nan) for _, model in (lower, higher)]
                found[seed] = math.exp(float(np.interp(wanted, [lower[0], higher[0]], each)))
                break
    return {seed: value for seed, value in found.items() if math.isfinite(value)}
