"""Estimates of the errors that public replications of nGPT report."""

import math

from paper_repro.papers.ngpt.runs import best_runs, judged_by
from paper_repro.tables import claims
from paper_repro.tables.stats import Samples
from paper_repro.tables.view import View

STORED = {"gpt": "gpt_bf16", "ngpt": "ngpt_bf16"}


def losses(view: View, model: str) -> Samples:
    """Return the test losses of a model by seed, at its best rate; none where it has not run."""
    best = best_runs(view, model=model)
    return view.samples(judged_by(view), best[0].place) if best else {}


def estimate_storage_hurts_gpt_more(view: View) -> claims.Estimate:
    """Return the factor by which storage raises GPT's loss over that of nGPT."""
    costs = []
    for model, stored in STORED.items():
        plain, other = losses(view, model), losses(view, stored)
        costs.append({seed: math.log(other[seed] / plain[seed]) for seed in plain.keys() & other.keys()})
    both = {seed: math.exp(costs[0][seed] - costs[1][seed]) for seed in costs[0].keys() & costs[1].keys()}
    named = "(loss of GPT stored in bfloat16 / in float32) / (the same of nGPT)"
    return claims.number(named, {"": both}, geometric=True)
