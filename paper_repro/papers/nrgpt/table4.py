"""NRGPT, Table 4: estimates of the quality of generated text."""

from functools import partial

from paper_repro.papers.nrgpt.closest import ahead_of_best

OURS, OTHERS = "ff2w", ("gpt", "rgpt", "rgpt_parallel")


estimate_text_quality_perplexity = partial(ahead_of_best, metric="perplexity", own=OURS, others=OTHERS)
estimate_text_quality_gqs = partial(ahead_of_best, metric="gqs_paper", own=OURS, others=OTHERS)
