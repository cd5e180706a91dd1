"""NRGPT on OpenWebText (Tables 1, 2, 5 and 6): estimates of the orders that the paper claims."""

from functools import partial
from itertools import pairwise

from paper_repro.papers.nrgpt.closest import ahead_of_best, closest
from paper_repro.tables.claims import RATIO, Estimate, at_places
from paper_repro.tables.view import View

OURS, OTHERS = "ff2w", ("gpt", "rgpt_parallel")
ORDER, LOSS = ("gpt", "rgpt_parallel", "ff2w"), "best_val_loss"


def estimate_loss_order(view: View) -> Estimate:
    """Return the least ratio of a model's loss to that of the model before it, in the order of the claim."""
    label = partial(view.label, "model")
    return closest(
        at_places(
            view,
            RATIO,
            (f"validation loss of {label(own)}", LOSS),
            (label(before), LOSS),
            {"": ({"model": own}, {"model": before})},
        )
        for before, own in pairwise(ORDER)
    )


estimate_diversity_distinct_1 = partial(ahead_of_best, metric="distinct_1", own=OURS, others=OTHERS)
estimate_diversity_distinct_2 = partial(ahead_of_best, metric="distinct_2", own=OURS, others=OTHERS)
estimate_mmlu_best = partial(ahead_of_best, metric="mmlu_generated_average", own=OURS, others=OTHERS)
estimate_continuations_best = partial(ahead_of_best, metric="continuations_mean", own=OURS, others=OTHERS)
