"""NRGPT on OpenWebText (Tables 1, 2, 5 and 6): estimates of the orders that the paper claims."""

from paper_repro.papers.nrgpt.closest import ahead_of_best, closest_step
from paper_repro.tables.claims import Estimate
from paper_repro.tables.view import View

OURS, OTHERS = "ff2w", ("gpt", "rgpt_parallel")
ORDER = ("gpt", "rgpt_parallel", "ff2w")


def estimate_loss_order(view: View) -> Estimate:
    losses = {model: view.samples("best_val_loss", {"model": model}) for model in ORDER}
    return closest_step(view, "validation loss", losses)


def estimate_diversity_distinct_1(view: View) -> Estimate:
    return ahead_of_best(view, "distinct_1", OURS, OTHERS)


def estimate_diversity_distinct_2(view: View) -> Estimate:
    return ahead_of_best(view, "distinct_2", OURS, OTHERS)


def estimate_mmlu_best(view: View) -> Estimate:
    return ahead_of_best(view, "mmlu_generated_average", OURS, OTHERS)


def estimate_continuations_best(view: View) -> Estimate:
    return ahead_of_best(view, "continuations_mean", OURS, OTHERS)
