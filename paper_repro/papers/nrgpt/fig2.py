"""NRGPT, figure 2: energies along 30 recurrences at eta = 1."""

from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.views import View
from paper_repro.papers.nrgpt.traces import bounded, descends, never, settles, traced_tokens

ROUNDING = 1e-9


def judge_energy_ends_lower(view: View) -> Judgement:
    tokens = traced_tokens(view)
    text = "tokens end no lower than they began"
    return never(view, "ends_lower", lambda lower: (round((1 - lower) * tokens), tokens), text)


def judge_energy_settles(view: View) -> Judgement:
    return settles(view)


def judge_first_token_monotone(view: View) -> Judgement:
    """Judge the first token of each model: its energy depends on no other."""
    text = "first tokens have a rise of its energy in a step"
    return never(view, "first_token_rise", lambda rise: (int(rise > ROUNDING), 1), text)


def judge_descent_after_predecessors(view: View) -> Judgement:
    return descends(view)


def judge_energy_bounded(view: View) -> Judgement:
    return bounded(view, "bound_use", 1.0, "largest share of a bound that an energy takes up")
