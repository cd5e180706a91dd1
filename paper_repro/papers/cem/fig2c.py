"""CEM, figure 2c: inner steps and preconditioners of CEM attention."""

from paper_repro.artifacts.claims import Judgement, Place
from paper_repro.artifacts.views import View
from paper_repro.papers.cem.recursion import StepsFigure
from paper_repro.papers.cem.text import judge_larger_gain


class Figure2c(StepsFigure):
    pass


def judge_preconditioner_gains_more_at_t2(view: View) -> Judgement:
    """Return what the diagonal-plus-low-rank preconditioner gains at T = 2, above what it gains at T = 1."""

    def pair(steps: str) -> tuple[Place, Place]:
        place = {"model": "attention", "steps": steps}
        return {**place, "preconditioner": "none"}, {**place, "preconditioner": "diagonal_low_rank"}

    return judge_larger_gain(view, {"": (pair("t2"), pair("t1"))})
