"""CEM, ours: models of figures 2b to 2d at their own best rates."""

from functools import partial

from paper_repro.papers.cem.bases.rates import RatesFigure, compare


class OwnRatesFigure(RatesFigure):
    groups = (("llama", "attention", "attention_t2"), ("llama", "mlp", "mlp_matched", "mlp_t2"))


estimate_second_step_helps = partial(compare, quantity="lowest perplexity", of="attention_t2", to="attention")
estimate_matched_beats_llama = partial(compare, quantity="lowest perplexity", of="mlp_matched", to="llama")
