"""CET, figure 5: as figures 3 and 4 with a tenth of the step size."""

from paper_repro.papers.cet.relaxations import ENERGY_MARKS, IMAGE_MARKS, RelaxationFigure, traces
from paper_repro.tables import claims
from paper_repro.tables.view import View

NEAR = 0.01
"""Two energies are the same within this share of the image's whole fall."""


class Figure5(RelaxationFigure):
    size = (7.0, 10.2)
    name = "tenth"
    marks = f"{ENERGY_MARKS} {IMAGE_MARKS}"
    energies = True
    images = True


def estimate_step_size_insensitive(view: View) -> claims.Estimate:
    """Return the share of images that end at one energy with both step sizes, and leave a plateau with both or none."""
    small = {trace.seed: trace for trace in traces(view, "tenth")}
    counts = {}
    for one in (trace for trace in traces(view, "long") if trace.seed in small):
        ten = small[one.seed]
        falls = [before + after for before, after in zip(one.before, one.after, strict=True)]
        near = [abs(a - b) <= NEAR * fall for a, b, fall in zip(one.energies[-1], ten.energies[-1], falls, strict=True)]
        same = [alike and a == b for alike, a, b in zip(near, one.late, ten.late, strict=True)]
        counts[one.seed] = sum(same), len(same)
    return claims.share("share of images that end alike", counts)
