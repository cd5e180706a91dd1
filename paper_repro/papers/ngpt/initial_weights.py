"""Ours: how much of nGPT's speedup in short runs of small models lies in the weights that GPT starts with."""

from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.views import View
from paper_repro.papers.ngpt import fig2


def judge_scaled_weights_help(view: View) -> Judgement:
    """Return the speedup of the scaled GPT over GPT: every budget's interval above 1."""
    return fig2.above_one(view, "gpt", "gpt_scaled")


def judge_speedup_remains(view: View) -> Judgement:
    """Return the speedup of nGPT over the scaled GPT: every budget's interval above 1."""
    return fig2.above_one(view, "gpt_scaled")
