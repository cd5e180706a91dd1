"""CEM, figure 3c: inner steps of CEM MLPs against plain reuse of Llama's."""

from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.views import View
from paper_repro.papers.cem.recursion import ReuseFigure, judge_gains_above_reuse


class Figure3c(ReuseFigure):
    pass


def judge_recursion_gains_more_than_reuse(view: View) -> Judgement:
    return judge_gains_above_reuse(view, ("mlp", "mlp_matched"))
