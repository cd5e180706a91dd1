"""NRGPT, appendix D: FLOPs of a recurrence by closed formulas, and the paper's sentences on the counts."""

import math
from itertools import product

from paper_repro.tables import claims, table
from paper_repro.tables.view import View

FEED_FORWARD_MACS = {"rgpt": (0, 2), "rgpt_parallel": (0, 2), "ff1": (0, 2), "ff2w": (0, 4), "ff2": (2, 2)}
"""Multiply-adds of the feed-forward part per token, as multiples of D^2 and of D M."""
PAIRS: dict[str, tuple[int, tuple[str, int, int], tuple[str, int, int]]] = {
    "table5": (1024, ("ff2w", 1536, 12), ("rgpt_parallel", 1740, 12)),
    "table2": (1024, ("ff2w", 768, 12), ("rgpt_parallel", 768, 12)),
    "table4": (256, ("ff2w", 128, 1), ("rgpt_parallel", 128, 1)),
}
"""Models that the paper puts side by side: window, and NRGPT's and RGPT-parallel's (kind, width, heads)."""


def flops_by_formula(kind: str, width: int, heads: int, window: int, hidden_factor: int = 4) -> int:
    """Count the FLOPs of one recurrence on one sequence, with M = f D and N = T - 1 keys under the strict mask.

    RGPT: ``8 T D^2 + 4 T^2 D + 4 T D M``.  NRGPT: ``2 N H D^2 + 4 N^2 H D + 2 T D^2`` of attention and eta, and of the
    feed-forward part ``4 T D M`` (FF1), ``8 T D M`` (FF2W) or ``4 T D^2 + 4 T D M`` (FF2).  Appendix D compares
    them in words and prints no formula.
    """
    square, by_hidden = FEED_FORWARD_MACS[kind]
    feed_forward = 2 * window * (square * width**2 + by_hidden * hidden_factor * width**2)
    if kind.startswith("rgpt"):
        return 8 * window * width**2 + 4 * window**2 * width + feed_forward
    keys = window - 1
    return 2 * keys * heads * width**2 + 4 * keys**2 * heads * width + 2 * window * width**2 + feed_forward


class Flops(table.Table):
    def summary(self) -> dict[str, float]:
        found = {
            f"ratio_{name}": flops_by_formula(*own, window) / flops_by_formula(*baseline, window)
            for name, (window, own, baseline) in PAIRS.items()
        }
        width, heads, window = 768, 12, 1024
        scores, maps = 4 * window * (heads - 1) * width, 2 * (heads - 1) * width**2
        return found | {"score_share": 100 * scores / (scores + maps)}


def estimate_flops_1_to_2(view: View) -> claims.Estimate:
    """Return the FLOPs of the paper's variants, FF1 with 8D and FF2W, over RGPT's at equal parameters."""
    axes, values = view.artifact.axes, {}
    for model, heads, window in product(("ff1_8d", "ff2w"), axes["heads"].values, axes["window"].values):
        place = {"parameters": "equal", "heads": heads, "window": window, "model": model}
        label = ", ".join(axes[axis].values[place[axis]].label for axis in ("model", "heads", "window"))
        values[label] = view.only("ratio", place)
    return claims.count("FLOPs of NRGPT", values, "RGPT with as many parameters", "times")


def estimate_heads_add_parameters(view: View) -> claims.Estimate:
    """Return the parameters with twelve heads over those with one, of each NRGPT over the same of RGPT."""
    models, growth = view.artifact.axes["model"].values, {}
    for model in models:
        place = {"parameters": "same_width", "window": "t1024", "model": model}
        one, twelve = (view.only("parameters", {**place, "heads": heads}) for heads in ("h1", "h12"))
        growth[model] = twelve / one if one and twelve else math.nan
    values = {spec.label: growth[model] / growth["rgpt"] for model, spec in models.items() if model.startswith("ff")}
    known = {label: None if math.isnan(value) else value for label, value in values.items()}
    return claims.count("growth of parameters from 1 to 12 heads of NRGPT", known, "of RGPT", "times")
