"""NRGPT, figure 2: energies along 30 recurrences at eta = 1."""

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement
from paper_repro.artifacts.views import View
from paper_repro.papers.nrgpt.traces import judge_each

LATE_CHANGE = 0.05
"""Share of a token's span of energies, within the last tenth of the recurrences."""
ROUNDING = 1e-9
SETTLED = 0.01
"""Predecessors count as settled within this share of their span, so a rise of this size contradicts nothing."""


def judge_energy_ends_lower(view: View) -> Judgement:
    return judge_each(view, "ends_lower", lambda share: share == 1.0, "share of tokens whose energy ends lower")


def judge_energy_settles(view: View) -> Judgement:
    text = f"largest change of a token's energy in the last tenth of the steps, at most {LATE_CHANGE} of its span"
    return judge_each(view, "late_change", lambda change: change <= LATE_CHANGE, text)


def judge_first_token_monotone(view: View) -> Judgement:
    text = "largest rise of the first token's energy in a step, over its span"
    return judge_each(view, "first_token_rise", lambda rise: rise <= ROUNDING, text)


def judge_descent_after_predecessors(view: View) -> Judgement:
    judged = judge_each(view, "judged_tokens", lambda count: count >= 1, "tokens whose predecessors settled in time")
    if judged.verdict != HOLDS:
        return Judgement(UNDECIDED, judged.because)
    text = f"largest rise in a step once all earlier tokens have settled, at most {SETTLED} of the span"
    fallen = judge_each(view, "settled_rise", lambda rise: rise <= SETTLED, text)
    return Judgement(FAILS if fallen.verdict == FAILS else HOLDS, f"{fallen.because}; {judged.because}")


def judge_energy_bounded(view: View) -> Judgement:
    return judge_each(view, "bound_use", lambda share: share <= 1.0, "largest share of a bound that an energy takes up")
