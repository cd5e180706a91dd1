"""NRGPT, figure 2: energies along 30 recurrences at eta = 1."""

from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.views import View
from paper_repro.papers.nrgpt.traces import descends, judge_each, settles

ROUNDING = 1e-9


def judge_energy_ends_lower(view: View) -> Judgement:
    return judge_each(view, "ends_lower", lambda share: share == 1.0, "share of tokens whose energy ends lower")


def judge_energy_settles(view: View) -> Judgement:
    return settles(view)


def judge_first_token_monotone(view: View) -> Judgement:
    text = "largest rise of the first token's energy in a step, over its span"
    return judge_each(view, "first_token_rise", lambda rise: rise <= ROUNDING, text)


def judge_descent_after_predecessors(view: View) -> Judgement:
    return descends(view)


def judge_energy_bounded(view: View) -> Judgement:
    return judge_each(view, "bound_use", lambda share: share <= 1.0, "largest share of a bound that an energy takes up")
