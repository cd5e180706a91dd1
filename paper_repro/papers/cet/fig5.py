"""CET, figure 5: as figures 3 and 4 with a tenth of the step size."""

from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.shares import Counts, share
from paper_repro.artifacts.views import View
from paper_repro.papers.cet.relaxations import ENERGY_MARKS, EP, IMAGE_MARKS, RelaxationFigure, traces

NEAR = 0.01
"""Two energies are the same within this share of the image's whole fall."""
MOST = 0.9
"""The share of the images that has to agree."""


class Figure5(RelaxationFigure):
    size = (10.0, 9.0)
    name = "tenth"
    marks = f"{ENERGY_MARKS} {IMAGE_MARKS}"
    energies = True
    images = True


def judge_step_size_insensitive(view: View) -> Judgement:
    """Judge whether nearly all images end at the same energy, and nearly all that collapse with one step size collapse
    with the other; undecided where none collapses.
    """
    small = {trace.seed: trace for trace in traces(view, "tenth")}
    pairs = [(trace, small[trace.seed]) for trace in traces(view, "long") if trace.seed in small]
    if not pairs:
        return Judgement(UNDECIDED, view.absence("tenth_late", EP))
    near, both = {}, {}
    for one, ten in pairs:
        falls = [before + after for before, after in zip(one.before, one.after, strict=True)]
        ends = list(zip(one.energies[-1], ten.energies[-1], falls, strict=True))
        near[one.seed] = sum(abs(first - second) <= NEAR * fall for first, second, fall in ends), len(ends)
        late = [pair for pair in zip(one.late, ten.late, strict=True) if any(pair)]
        both[one.seed] = sum(map(all, late)), len(late)
    parts = [
        ("energies", _most(near, "images end at the same energy")),
        ("collapse", _most(both, "images that collapse with one step size collapse with the other")),
    ]
    return combine(parts, FAILS, HOLDS)


def _most(counts: Counts, text: str) -> Judgement:
    agree, looked = (sum(column) for column in zip(*counts.values(), strict=True))
    if not looked:
        return Judgement(UNDECIDED, "no image collapses with either step size")
    found = share(counts)
    return tested(found, f"{agree} of {looked} {text}: share {found}, above {MOST:g} wanted", MOST)
