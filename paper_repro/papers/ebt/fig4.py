"""EBT, figure 4: losses over data, batch size and depth."""

from collections.abc import Sequence

from paper_repro.papers.ebt import learning
from paper_repro.tables import claims
from paper_repro.tables.figure import Canvas, Figure, Row
from paper_repro.tables.view import View

BASE = {"batch": "one", "depth": "one"}
BATCHES, DEPTHS = {"depth": "one"}, {"batch": "one"}
PANELS = {"data": "training tokens", "batch": "batch size", "depth": "layers"}


class Figure4(Figure):
    """Three panels: losses while one run trains, and final losses over batch sizes and over layers."""

    size = (10.0, 3.4)
    metric = learning.LOSS

    def rows(self) -> list[Row]:
        found = learning.curve_rows(self.view, "data", (learning.TRANSFORMER, learning.S1), BASE)
        found += learning.rows_over("batch", learning.runs(self.view, **BATCHES), lambda run: run.batch)
        return found + learning.rows_over("depth", learning.runs(self.view, **DEPTHS), lambda run: run.depth)

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        panels = canvas.subplots(1, len(PANELS), sharey=True)
        for axes, (panel, label) in zip(panels, PANELS.items(), strict=True):
            learning.draw_panel(axes, [row for row in rows if row["panel"] == panel], self.view, label)
        panels[0].set_ylabel("validation loss (nats per token)")


def estimate_data_batch_depth(view: View) -> claims.Estimate:
    """EBT's exponents over data, batch size and depth less Transformer++'s.

    Not the ratio: of a seed whose exponent is near zero it says nothing.
    """

    def own(model: str) -> dict[str, dict[int, float]]:
        return {
            "data": learning.late_exponents(learning.curves(view, {**BASE, "model": model})),
            "batch size": learning.exponents(learning.runs(view, model=model, **BATCHES), lambda run: run.batch),
            "depth": learning.exponents(learning.runs(view, model=model, **DEPTHS), lambda run: run.depth),
        }

    ours, theirs = own(learning.S1), own(learning.TRANSFORMER)
    parts = {name: (ours[name], theirs[name]) for name in ours}
    return claims.difference("exponent of EBT's loss", "exponent of Transformer++'s loss", parts)
