"""EBT, figure C.1: losses of S1 and S2 over data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, intervals
from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import (
    LOSS,
    MARKS,
    NOT_RUN,
    S1,
    S2,
    above_zero,
    curve_rows,
    curves,
    draw_points,
    late_curve,
    late_exponents,
    names_of,
    over_logarithm,
    over_seeds,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PANEL = "data"
MARGIN = 0.1
"""A share of S1's exponent: S2's counts as not below it if it is not smaller by more."""


class FigureC1(figures.Figure):
    """Validation losses of both while they train."""

    size = (5.5, 3.6)
    marks = MARKS
    metric = LOSS

    def rows(self) -> list[Row]:
        return curve_rows(self.view, PANEL, (S1, S2), {})

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        draw_points(axes, rows, names_of(self.view))
        over_logarithm(axes, rows, "training tokens")
        axes.set_ylabel("validation loss (nats per token)")


def judge_s2_scales_like_s1(view: View) -> Judgement:
    """Judge S2's exponent, and its loss at the first evaluation that the exponents are fitted to, against S1's."""
    found = {model: curves(view, {"model": model}) for model in (S1, S2)}
    if not found[S1] or not found[S2]:
        return NOT_RUN
    exponents = {model: late_exponents(curve) for model, curve in found.items()}
    margin = MARGIN * abs(intervals.mean(list(exponents[S1].values()))) if exponents[S1] else 0.0
    starts = {model: {seed: late_curve(curve)[0][1] for seed, curve in found[model].items()} for model in (S1, S2)}
    parts = [
        ("the exponent", above_zero(*over_seeds(exponents[S2], exponents[S1]), margin=margin)),
        ("the higher loss", above_zero(*over_seeds(starts[S2], starts[S1]))),
    ]
    return combine(parts, FAILS, HOLDS)
