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
    """Return whether nearly all images end at the same energy, and nearly all that collapse with one step size collapse
    with the other; undecided where none collapses.
    """
    small = {trace.seed: trace for trace in traces(view, "tenth")}
    pairs = [(trace, small[trace.seed]) for trace in traces(view, "long") if trace.seed in small]
    if not pairs:
        return Judgement(UNDECIDED, view.absence("tenth_late", EP))
    near, both = [], []
    for one, ten in pairs:
        falls = [before + after for before, after in zip(one.before, one.after, strict=True)]
        ends = zip(one.energies[-1], ten.energies[-1], falls, strict=True)
        near += [abs(first - second) <= NEAR * fall for first, second, fall in ends]
        both += [first and second for first, second in zip(one.late, ten.late, strict=True) if first or second]
    energies = _share(near, "images end at the same energy")
    if not both:
        collapse = Judgement(UNDECIDED, f"none of {len(near)} images collapses with either step size")
    else:
        collapse = _share(both, "images that collapse with one step size collapse with the other")
    return combine([("energies", energies), ("collapse", collapse)], FAILS, HOLDS)


def _share(agree: list[bool], text: str) -> Judgement:
    verdict = HOLDS if sum(agree) >= MOST * len(agree) else FAILS
    return Judgement(verdict, f"{sum(agree)} of {len(agree)} {text}")
