"""EBT, figure C.1: losses of S1 and S2 over data."""

from collections.abc import Sequence

from paper_repro.papers.ebt.learning import LOSS, S1, S2, curve_rows, curves, draw_panel, late_exponents
from paper_repro.tables import claims
from paper_repro.tables.figure import Canvas, Figure, Row
from paper_repro.tables.view import View


class FigureC1(Figure):
    """Validation losses of both while they train."""

    size = (5.5, 3.6)
    metric = LOSS

    def rows(self) -> list[Row]:
        return curve_rows(self.view, "data", (S1, S2), {})

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        draw_panel(axes, rows, self.view, "training tokens")
        axes.set_ylabel("validation loss (nats per token)")


def estimate_s2_scales_like_s1(view: View) -> claims.Estimate:
    """S2's exponent over data over S1's."""
    sides = [late_exponents(curves(view, {"model": model})) for model in (S2, S1)]
    return claims.ratio("exponent of S2's loss", "exponent of S1's loss", {"": (sides[0], sides[1])})
