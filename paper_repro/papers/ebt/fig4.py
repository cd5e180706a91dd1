"""EBT, figure 4: losses over data, batch size and depth."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.papers.ebt.learning import (
    LOSS,
    MARKS,
    S1,
    TRANSFORMER,
    curve_rows,
    curves,
    draw_panel,
    exponents,
    late_exponents,
    rows_over,
    runs,
)
from paper_repro.tables import claims
from paper_repro.tables.claims import Estimate
from paper_repro.tables.figure import Figure, Row
from paper_repro.tables.view import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BASE = {"batch": "one", "depth": "one"}
BATCHES, DEPTHS = {"depth": "one"}, {"batch": "one"}
PANELS = {"data": "training tokens", "batch": "documents a step", "depth": "layers"}


class Figure4(Figure):
    """Three panels: losses while one run trains, and final losses over batch sizes and over layers."""

    size = (10.0, 3.4)
    marks = MARKS
    metric = LOSS

    def rows(self) -> list[Row]:
        found = curve_rows(self.view, "data", (TRANSFORMER, S1), BASE)
        found += rows_over("batch", runs(self.view, **BATCHES), lambda run: run.batch)
        return found + rows_over("depth", runs(self.view, **DEPTHS), lambda run: run.depth)

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        panels = canvas.subplots(1, len(PANELS), sharey=True)
        for axes, (panel, label) in zip(panels, PANELS.items(), strict=True):
            draw_panel(axes, [row for row in rows if row["panel"] == panel], self.view, label)
        panels[0].set_ylabel("validation loss (nats per token)")


def estimate_data_batch_depth(view: View) -> Estimate:
    """EBT's exponents over data, batch size and depth less Transformer++'s.

    Not the ratio: of a seed whose exponent is near zero it says nothing.
    """

    def own(model: str) -> dict[str, dict[int, float]]:
        return {
            "data": late_exponents(curves(view, {**BASE, "model": model})),
            "batch size": exponents(runs(view, model=model, **BATCHES), lambda run: run.batch),
            "depth": exponents(runs(view, model=model, **DEPTHS), lambda run: run.depth),
        }

    ours, theirs = own(S1), own(TRANSFORMER)
    parts = {name: (ours[name], theirs[name]) for name in ours}
    return claims.difference("exponent of EBT's loss", "exponent of Transformer++'s loss", parts)
