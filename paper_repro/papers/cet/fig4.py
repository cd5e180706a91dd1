"""CET, figure 4: reconstructions along relaxations far longer than those of the training."""

import math

from paper_repro.artifacts.claims import UNDECIDED, Judgement, tested
from paper_repro.artifacts.intervals import student
from paper_repro.artifacts.views import View
from paper_repro.papers.cet.relaxations import EP, IMAGE_MARKS, RelaxationFigure, traces

FEWEST = 10
"""Images below which Fisher's interval says little."""


class Figure4(RelaxationFigure):
    size = (10.0, 6.0)
    name = "long"
    marks = IMAGE_MARKS
    images = True


def judge_spurious_minima(view: View) -> Judgement:
    """Return whether the rank correlation of late falls and growing errors is positive, by its 95 % interval."""
    from scipy.stats import spearmanr

    found = traces(view, "long")
    pairs = [
        (after / before if before > 0 else 0.0, growth)
        for trace in found
        for before, after, growth in zip(trace.before, trace.after, trace.growth(), strict=True)
    ]
    if not pairs:
        return Judgement(UNDECIDED, view.absence("long_late", EP))
    falls, growths = zip(*pairs, strict=True)
    if len(pairs) < FEWEST or len(set(falls)) < 2 or len(set(growths)) < 2:
        return Judgement(UNDECIDED, f"{len(pairs)} images, too few or all alike")
    correlation = float(spearmanr(falls, growths).statistic)
    middle = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, correlation)))
    interval = student(middle, math.sqrt(1.06 / (len(pairs) - 3)), math.inf, len(pairs))  # 1.06: for ranks
    low, high = math.tanh(interval.low), math.tanh(interval.high)
    text = f"rank correlation {correlation:.2f} [{low:.2f}, {high:.2f}], {len(pairs)} images"
    if len(found) < 2:
        return Judgement(UNDECIDED, f"{text} of one seed: not judged")
    return tested(interval, text, 0.0, seeds=len(found))
