"""NRGPT on OpenWebText (Tables 1, 2, 5 and 6): estimates of the orders that the paper claims."""

from functools import partial

from paper_repro.papers.nrgpt.closest import ahead_of_best, closest_step
from paper_repro.tables.claims import Estimate
from paper_repro.tables.view import View

OURS, OTHERS = "ff2w", ("gpt", "rgpt_parallel")
ORDER = ("gpt", "rgpt_parallel", "ff2w")


def estimate_loss_order(view: View) -> Estimate:
    losses = {model: view.samples("best_val_loss", {"model": model}) for model in ORDER}
    return closest_step(view, "validation loss", losses)


estimate_diversity_distinct_1 = partial(ahead_of_best, metric="distinct_1", own=OURS, others=OTHERS)
estimate_diversity_distinct_2 = partial(ahead_of_best, metric="distinct_2", own=OURS, others=OTHERS)
estimate_mmlu_best = partial(ahead_of_best, metric="mmlu_generated_average", own=OURS, others=OTHERS)
estimate_continuations_best = partial(ahead_of_best, metric="continuations_mean", own=OURS, others=OTHERS)
