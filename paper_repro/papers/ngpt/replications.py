"""Estimates of the errors that public replications of nGPT report."""

import math

from paper_repro.papers.ngpt.runs import LOSS as CHOSEN_BY
from paper_repro.tables import claims, stats
from paper_repro.tables.stats import Samples
from paper_repro.tables.view import View

JUDGED_BY = "test_loss"
STORED = {"gpt": "gpt_bf16", "ngpt": "ngpt_bf16"}


def losses(view: View, model: str) -> Samples:
    """Return the test losses of a model by seed, at the rate with the lowest mean validation loss; none where it has
    not run.
    """
    unwatched = view.unwatched()
    rates = [place for key in view.points if (place := dict(key))["model"] == model and not view.lost(CHOSEN_BY, place)]
    means = {
        place["lr"]: stats.mean([*found.values()]) for place in rates if (found := unwatched.samples(CHOSEN_BY, place))
    }
    return view.samples(JUDGED_BY, {"model": model, "lr": min(means, key=means.__getitem__)}) if means else {}


def estimate_storage_hurts_gpt_more(view: View) -> claims.Estimate:
    """Return the factor by which storage raises GPT's loss over that of nGPT."""
    costs = []
    for model, stored in STORED.items():
        plain, other = losses(view, model), losses(view, stored)
        costs.append({seed: math.log(other[seed] / plain[seed]) for seed in plain.keys() & other.keys()})
    both = {seed: math.exp(costs[0][seed] - costs[1][seed]) for seed in costs[0].keys() & costs[1].keys()}
    named = "(loss of GPT stored in bfloat16 / in float32) / (the same of nGPT)"
    return claims.number(named, {"": both}, geometric=True)
