"""The figure of an artifact that sweeps learning rates, for its claim that the best of them lies inside the grid."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, palette
from paper_repro.artifacts.brackets import Bracketed
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.base.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


class RatesFigure(figures.Figure):
    """Loss over learning rate: every run as a dot, a line through the means over seeds of each model.

    Metric and column are those of the artifact's claim whose predicate is ``bracketed``.

    Raises:
        UsageError: the artifact has no such claim, or no axis ``model``.
    """

    size = (5.0, 3.6)
    marks = "Faint dots: seeds; marks and lines: means over seeds."

    def __init__(self, view: View) -> None:
        super().__init__(view)
        predicates = (claim.predicate for claim in self.artifact.claims)
        swept = next((predicate for predicate in predicates if isinstance(predicate, Bracketed)), None)
        if swept is None or "model" not in self.artifact.axes:
            raise UsageError(
                f"{self.artifact.path}: RatesFigure draws the sweep of a claim whose predicate is 'bracketed', a line "
                "for each value of the axis 'model': add what is missing, or leave out 'figure'"
            )
        self.metric = self._loss = swept.side.metric
        self._column = swept.by

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for key in self.view.points:
            place = dict(key)
            losses = self.view.samples(self._loss, place)
            rate = self.view.counted(self._column, place) if losses else None
            for seed, loss in sorted(losses.items()):
                found.append({"model": place["model"], "rate": rate, "seed": seed, self._loss: round(loss, 8)})
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes, spec = canvas.subplots(), self.artifact.metrics[self._loss]
        for model, value in self.artifact.axes["model"].values.items():
            own = [(row["rate"], row[self._loss]) for row in rows if row["model"] == model]
            figures.seeds_and_mean(axes, own, palette.model(self.artifact.id, model), value.label)
        axes.set(xscale="log", xlabel="initial learning rate", ylabel=f"{spec.title} ({spec.unit})")
        figures.log_ticks(axes.xaxis)
        axes.xaxis.set_major_formatter("{x:g}")
