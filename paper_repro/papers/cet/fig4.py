"""CET, figure 4: reconstructions along relaxations far longer than those of the training."""

import math

from paper_repro.artifacts import intervals
from paper_repro.artifacts.claims import UNDECIDED, Judgement, tested
from paper_repro.artifacts.views import View
from paper_repro.papers.cet.relaxations import EP, IMAGE_MARKS, RelaxationFigure, traces

FEWEST = 10
"""Images of a model below which their correlation says little."""
LARGEST = 1 - 1e-12
"""A correlation of 1 has no Fisher's z."""


class Figure4(RelaxationFigure):
    size = (10.0, 6.0)
    name = "long"
    marks = IMAGE_MARKS
    images = True


def judge_spurious_minima(view: View) -> Judgement:
    """Return whether the rank correlation of late falls and growing errors is positive: by Fisher's z of each model's
    images, and their interval over seeds, for the images of one model may go together.
    """
    from scipy.stats import spearmanr

    found = traces(view, "long")
    if not found:
        return Judgement(UNDECIDED, view.absence("long_late", EP))
    correlations: dict[int, float] = {}
    for trace in found:
        falls = [after / before if before > 0 else 0.0 for before, after in zip(trace.before, trace.after, strict=True)]
        growths = trace.growth()
        if len(falls) < FEWEST or len(set(falls)) < 2 or len(set(growths)) < 2:
            return Judgement(UNDECIDED, f"seed {trace.seed}: {len(falls)} images, too few or all alike")
        correlations[trace.seed] = float(spearmanr(falls, growths).statistic)
    each = ", ".join(f"{correlation:.2f}" for correlation in correlations.values())
    if len(correlations) < 2:
        return Judgement(UNDECIDED, f"rank correlation {each}, one seed: not judged")
    interval = intervals.of([math.atanh(max(-LARGEST, min(LARGEST, value))) for value in correlations.values()])
    mean, low, high = (math.tanh(number) for number in (interval.mean, interval.low, interval.high))
    return tested(interval, f"rank correlation {mean:.2f} [{low:.2f}, {high:.2f}]; by seed {each}", 0.0)
