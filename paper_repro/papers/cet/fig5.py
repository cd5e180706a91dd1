"""CET, figure 5: as figures 3 and 4 with a tenth of the step size."""

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine
from paper_repro.artifacts.views import View
from paper_repro.papers.cet.relaxations import EP, RelaxationFigure, traces

NEAR = 0.01
"""Two energies are the same within this share of the image's whole fall."""
MOST = 0.9
"""The share of the images that has to agree."""


class Figure5(RelaxationFigure):
    size = (10.0, 9.0)
    name = "tenth"
    energies = True
    images = True


def judge_step_size_insensitive(view: View) -> Judgement:
    """Return whether nearly all images end at the same energy, and nearly all collapse with both step sizes or with
    none.
    """
    small = {trace.seed: trace for trace in traces(view, "tenth")}
    pairs = [(trace, small[trace.seed]) for trace in traces(view, "long") if trace.seed in small]
    if not pairs:
        return Judgement(UNDECIDED, view.absence("tenth_late", EP))
    near, alike = [], []
    for one, ten in pairs:
        falls = [before + after for before, after in zip(one.before, one.after, strict=True)]
        ends = zip(one.energies[-1], ten.energies[-1], falls, strict=True)
        near += [abs(first - second) <= NEAR * fall for first, second, fall in ends]
        alike += [first == second for first, second in zip(one.late, ten.late, strict=True)]
    late = sum(sum(one.late) for one, _ in pairs)
    return combine(
        [("energies", _share(near, "")), ("collapse", _share(alike, f", {late} collapse at 1"))], FAILS, HOLDS
    )


def _share(agree: list[bool], more: str) -> Judgement:
    verdict = HOLDS if sum(agree) >= MOST * len(agree) else FAILS
    return Judgement(verdict, f"{sum(agree)} of {len(agree)} images agree{more}")
