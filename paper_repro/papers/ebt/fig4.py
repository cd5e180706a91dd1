"""EBT, figure 4: losses over data, batch size and depth."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures
from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import (
    LOSS,
    MARKS,
    NOT_RUN,
    S1,
    TRANSFORMER,
    above_zero,
    compared,
    curve_rows,
    curves,
    draw_points,
    larger_exponent,
    late_exponents,
    names_of,
    over_logarithm,
    rows_over,
    runs,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BASE = {"batch": "one", "depth": "one"}
BATCHES, DEPTHS = {"depth": "one"}, {"batch": "one"}
PANELS = {"data": "training tokens", "batch": "documents a step", "depth": "layers"}


class Figure4(figures.Figure):
    """Three panels: losses while one run trains, and final losses over batch sizes and over layers."""

    size = (10.0, 3.4)
    marks = MARKS
    metric = LOSS

    def rows(self) -> list[Row]:
        found = curve_rows(self.view, "data", (TRANSFORMER, S1), BASE)
        found += rows_over("batch", runs(self.view, **BATCHES), lambda run: run.batch)
        found += rows_over("depth", runs(self.view, **DEPTHS), lambda run: run.depth)
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        for axes, (panel, label) in zip(canvas.subplots(1, len(PANELS), sharey=True), PANELS.items(), strict=True):
            own = [row for row in rows if row["panel"] == panel]
            draw_points(axes, own, names_of(self.view))
            over_logarithm(axes, own, label)
            if panel == "data":
                axes.set_ylabel("validation loss (nats per token)")


def judge_data_batch_depth(view: View) -> Judgement:
    """Judge the exponents over data, batch size and depth."""
    parts = [
        ("data", guarded(view, _data)),
        ("batch size", larger_exponent(view, BATCHES, lambda run: run.batch)),
        ("depth", larger_exponent(view, DEPTHS, lambda run: run.depth)),
    ]
    return combine(parts, FAILS, HOLDS)


def _data(view: View) -> Judgement:
    exponents = [late_exponents(curves(view, {**BASE, "model": model})) for model in (S1, TRANSFORMER)]
    if not any(exponents):
        return NOT_RUN
    return above_zero(*compared(*exponents))
