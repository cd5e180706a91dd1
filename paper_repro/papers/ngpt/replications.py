"""Estimates of the errors that public replications of nGPT report."""

import math

from paper_repro.papers.ngpt.runs import best_runs, judged_by
from paper_repro.tables import claims
from paper_repro.tables.stats import Samples
from paper_repro.tables.view import View

STORED = {"gpt": "gpt_bf16", "ngpt": "ngpt_bf16"}


def cost(view: View, model: str) -> tuple[Samples, dict[int, list[float]]]:
    """Return the logarithm of the factor by which storage in bfloat16 raises a model's test loss, by seed.

    Each model is read at its best rate.  The second mapping has what single test items add to it.
    """
    best = [best_runs(view, model=name) for name in (STORED[model], model)]
    if not all(best):
        return {}, {}
    stored, plain = (view.samples(judged_by(view), own[0].place) for own in best)
    left, right = (claims.item_losses(view, claims.TEST_ITEMS, own[0].place) for own in best)
    logs = {seed: math.log(stored[seed] / plain[seed]) for seed in stored.keys() & plain.keys()}
    return logs, {seed: claims.relative(left[seed], right[seed]) for seed in left.keys() & right.keys()}


def estimate_storage_hurts_gpt_more(view: View) -> claims.Estimate:
    """Return the factor by which storage raises GPT's loss over that of nGPT."""
    (gpt, gpt_items), (ngpt, ngpt_items) = (cost(view, model) for model in STORED)
    both = {seed: math.exp(gpt[seed] - ngpt[seed]) for seed in gpt.keys() & ngpt.keys()}
    shared = gpt_items.keys() & ngpt_items.keys()
    items = {seed: [a - b for a, b in zip(gpt_items[seed], ngpt_items[seed], strict=True)] for seed in shared}
    named = "(loss of GPT stored in bfloat16 / in float32) / (the same of nGPT)"
    return claims.number(named, {"": both}, geometric=True, items={"": items})
