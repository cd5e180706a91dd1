"""CEM, ours: models of figures 2b to 2d at their own best rates."""

from paper_repro.papers.cem.bases.rates import RatesFigure, compare
from paper_repro.tables.claims import Estimate
from paper_repro.tables.view import View


class OwnRatesFigure(RatesFigure):
    groups = (("llama", "attention", "attention_t2"), ("llama", "mlp", "mlp_matched", "mlp_t2"))


def estimate_second_step_helps(view: View) -> Estimate:
    """Return the lowest perplexity of CEM attention with T = 2 over that with T = 1."""
    return compare(view, "lowest perplexity", "attention_t2", "attention")


def estimate_matched_beats_llama(view: View) -> Estimate:
    """Return the lowest perplexity of the parameter-matched CEM MLP over Llama's."""
    return compare(view, "lowest perplexity", "mlp_matched", "llama")
