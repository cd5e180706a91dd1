"""nGPT, figure 7: final losses against the initial learning rate."""

import math
from collections.abc import Sequence

import numpy as np

from paper_repro.papers.ngpt.runs import LOSS, MARKS, named, runs
from paper_repro.tables import figure, plots
from paper_repro.tables.figure import Axes, BaselineLine, Canvas, Row, panel_lines


class Figure7(figure.Figure):
    """One panel for each context and budget: the loss against the rate, a line a model."""

    size = (10.0, 5.2)
    marks = f"{MARKS} {plots.FAR_MARKS}"

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for run in runs(self.view):
            where = {axis: run.place[axis] for axis in ("context", "size", "budget", "model")}
            window = int(self.view.counted("window", run.place) or 0)
            numbers = {"window": window, "tokens": int(run.tokens), "rate": run.rate, "seed": run.seed}
            found.append({**where, **numbers, LOSS: round(run.loss, 8)})
        return found

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        contexts, budgets = self.view.chosen("context"), self.view.chosen("budget")
        panels = canvas.subplots(len(contexts), len(budgets), squeeze=False)
        for line, context in zip(panels, contexts, strict=True):
            for axes, budget in zip(line, budgets, strict=True):
                own = [row for row in rows if (row["context"], row["budget"]) == (context, budget)]
                if own:
                    self._panel(axes, own)
                else:
                    axes.set_axis_off()
            line[0].set_ylabel("final validation loss\n(nats per token)")

    def _panel(self, axes: Axes, own: Sequence[Row]) -> None:
        means: list[tuple[float, list[float], str]] = []
        for size, style in zip(self.view.chosen("size"), ("-", "--"), strict=False):
            for model in self.view.chosen("model"):
                line = [row for row in own if (row["size"], row["model"]) == (size, model)]
                points, color = [(row["rate"], row[LOSS]) for row in line], self.color(model)
                plots.seeds_and_mean(axes, points, color, named(self.view, model, size), style)
                rates = dict.fromkeys(rate for rate, _ in points)
                means += [(rate, [loss for other, loss in points if other == rate], color) for rate in rates]
        axes.set(
            xscale="log",
            xlabel="initial learning rate",
            title=f"window {own[0]['window']:,}, {own[0]['tokens']:,} tokens",
        )
        plots.ticks_at(axes, (row["rate"] for row in own))
        plots.far_points(axes, means)
        for text in axes.texts:  # below the names of baselines at the upper edge, and inside the panel
            text.set(position=(-12, -9), ha="center")
        top = axes.get_ylim()[1]
        for curve in axes.lines:  # a line to a point far above would leave the panel
            losses = [float(loss) for loss in np.asarray(curve.get_ydata())]
            curve.set_ydata([loss if loss <= top else math.nan for loss in losses])

    def baselines(self) -> list[BaselineLine]:
        contexts, budgets = self.view.chosen("context"), self.view.chosen("budget")
        return panel_lines(self.view, [(LOSS, {"context": context}) for context in contexts for _ in budgets])
