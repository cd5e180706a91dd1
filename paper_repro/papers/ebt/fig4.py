"""EBT, figure 4: losses over data, batch size and depth."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures
from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import (
    NOT_RUN,
    S1,
    TRANSFORMER,
    above_zero,
    curve_rows,
    curves,
    draw_points,
    larger_exponent,
    late_exponents,
    names_of,
    not_below_the_floor,
    over_logarithm,
    over_seeds,
    rows_over,
    runs,
    with_floor,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BASE = {"batch": "one", "depth": "one"}
BATCHES, DEPTHS = {"depth": "one"}, {"batch": "one"}
PANELS = {"data": "training tokens", "batch": "documents a step", "depth": "layers"}


class Figure4(figures.Figure):
    """Three panels: losses while one run trains, and final losses over batch sizes and over layers."""

    size = (10.0, 3.4)

    def rows(self) -> list[Row]:
        found = curve_rows(self.view, "data", (TRANSFORMER, S1), BASE)
        found += rows_over("batch", runs(self.view, **BATCHES), lambda run: run.batch)
        found += rows_over("depth", runs(self.view, **DEPTHS), lambda run: run.depth)
        return with_floor(self.view, found)

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        for axes, (panel, label) in zip(canvas.subplots(1, len(PANELS), sharey=True), PANELS.items(), strict=True):
            own = [row for row in rows if row["panel"] == panel]
            draw_points(axes, own, names_of(self.view))
            over_logarithm(axes, own, label)
            if panel == "data":
                axes.set_ylabel("validation loss (nats per token)")
                if own:
                    axes.legend(fontsize=8)


def judge_data_batch_depth(view: View) -> Judgement:
    """Judge the exponents over data, batch size and depth."""
    parts = [("data", _data(view))]
    for name, fixed in (("batch size", BATCHES), ("depth", DEPTHS)):
        candidate, baseline = (list(runs(view, model=model, **fixed)) for model in (S1, TRANSFORMER))
        size = (lambda run: run.batch) if name == "batch size" else (lambda run: run.depth)
        parts.append((name, larger_exponent(view, candidate, baseline, size)))
    return combine(parts, FAILS, HOLDS)


def _data(view: View) -> Judgement:
    found = [run for model in (S1, TRANSFORMER) for run in runs(view, model=model, **BASE)]
    if not found:
        return NOT_RUN
    if (reason := not_below_the_floor(view, found)) is not None:
        return reason
    exponents = (late_exponents(curves(view, {**BASE, "model": model})) for model in (S1, TRANSFORMER))
    return above_zero(*over_seeds(*exponents))
