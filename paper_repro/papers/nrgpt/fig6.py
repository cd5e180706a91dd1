"""NRGPT, figure 6: energies along 100 recurrences with a rate matrix of any form."""

from paper_repro.artifacts import intervals, tables
from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.views import View
from paper_repro.papers.nrgpt.traces import settles


class Directions(tables.Table):
    def remarks(self) -> list[str]:
        shares = [share for key in self.view.points for share in self.view.samples("ends_lower", dict(key)).values()]
        if not shares:
            return []
        return [
            f"{100 * intervals.mean(shares):.0f} % of the tokens end lower than they began: without a constraint the "
            "update is no descent on this energy, whether or not it settles."
        ]


def judge_unconstrained_settles(view: View) -> Judgement:
    return settles(view)
