"""NRGPT, figure 6: energies along 100 recurrences with a rate matrix of any form."""

from paper_repro.claims import Judgement
from paper_repro.papers.nrgpt.traces import TraceFigure, judge_each
from paper_repro.views import View

LATE_CHANGE = 0.05
"""Of a token's span within the last tenth of the recurrences."""


class Figure6(TraceFigure):
    pass


def judge_unconstrained_settles(view: View) -> Judgement:
    text = f"largest change of a token's energy in the last tenth of the steps, at most {LATE_CHANGE} of its span"
    return judge_each(view, "late_change", lambda change: change <= LATE_CHANGE, text)
