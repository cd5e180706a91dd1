"""CET, figure 4: reconstructions along relaxations far longer than those of the training."""

from paper_repro.papers.cet.relaxations import IMAGE_MARKS, RelaxationFigure, traces
from paper_repro.tables import claims
from paper_repro.tables.view import View


class Figure4(RelaxationFigure):
    size = (7.0, 7.6)
    name = "long"
    marks = IMAGE_MARKS
    images = True


def estimate_spurious_minima(view: View) -> claims.Estimate:
    """Return Spearman's rank correlation of the late fall of each image's energy and the growth of its error."""
    from scipy.stats import spearmanr

    found: dict[int, float] = {}
    for trace in traces(view, "long"):
        falls = [after / before if before > 0 else 0.0 for before, after in zip(trace.before, trace.after, strict=True)]
        if len(set(falls)) < 2 or len(set(trace.growth())) < 2:
            return claims.nothing(f"seed {trace.seed}: all images alike")
        found[trace.seed] = float(spearmanr(falls, trace.growth()).statistic)
    return claims.number("rank correlation of late fall and growth of the error", {"": found})
