"""NRGPT, figure 2: energies along 30 recurrences at eta = 1."""

from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.views import View
from paper_repro.papers.nrgpt.traces import bounded, descends, never, settles, traced_tokens, vocabulary_size


def judge_energy_ends_lower(view: View) -> Judgement:
    tokens = traced_tokens(view)
    text = "tokens end no lower than they began"
    return never(view, "ends_lower", lambda lower: (round((1 - lower) * tokens), tokens), text)


def judge_energy_settles(view: View) -> Judgement:
    return settles(view)


def judge_first_token_monotone(view: View) -> Judgement:
    """Judge every token of each model's vocabulary in the first place, where its energy depends on no other."""
    tokens = vocabulary_size(view)
    text = "first tokens have a rise of their energy in a step"
    return never(view, "first_tokens_rising", lambda rising: (round(rising * tokens), tokens), text)


def judge_descent_after_predecessors(view: View) -> Judgement:
    return descends(view)


def judge_energy_bounded(view: View) -> Judgement:
    return bounded(view, "bound_use", 1.0, "largest share of a bound that an energy takes up")
