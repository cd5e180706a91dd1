"""NRGPT, Table 4: estimates of the quality of generated text."""

from paper_repro.papers.nrgpt.closest import ahead_of_best
from paper_repro.tables.claims import Estimate
from paper_repro.tables.view import View

OURS, OTHERS = "ff2w", ("gpt", "rgpt", "rgpt_parallel")


def estimate_text_quality_perplexity(view: View) -> Estimate:
    return ahead_of_best(view, "perplexity", OURS, OTHERS)


def estimate_text_quality_gqs(view: View) -> Estimate:
    return ahead_of_best(view, "gqs_paper", OURS, OTHERS)
