"""nGPT, figure 7: final losses against the initial learning rate."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paper_repro.papers.ngpt.runs import LOSS, named, runs
from paper_repro.tables import figure, plots, stats
from paper_repro.tables.figure import Axes, BaselineLine, Canvas, Row, panel_lines

FAR, MOST_FAR = 1.0, 4
"""A mean is far above the others if it lies more than so many times their span above them; one in so many may be."""
FAR_MARKS = "A mean far above the others stands as a number at the upper edge."


class Figure7(figure.Figure):
    """One panel for each context and budget: the loss against the rate, a line a model."""

    size = (10.0, 5.2)
    marks = f"{figure.Figure.marks} {FAR_MARKS}"

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
        _far_points(axes, means)
        for text in axes.texts:  # below the names of baselines at the upper edge, and inside the panel
            text.set(position=(-12, -9), ha="center")
        top = axes.get_ylim()[1]
        for curve in axes.lines:  # a line to a point far above would leave the panel
            losses = [float(loss) for loss in np.asarray(curve.get_ydata())]
            curve.set_ydata([loss if loss <= top else math.nan for loss in losses])

    def baselines(self) -> list[BaselineLine]:
        contexts, budgets = self.view.chosen("context"), self.view.chosen("budget")
        return panel_lines(self.view, [(LOSS, {"context": context}) for context in contexts for _ in budgets])


def _far_points(axes: Axes, points: Sequence[tuple[float, Sequence[float], str]]) -> None:
    """Limit a panel to the values that are not far above the rest, and write the far means at its upper edge.

    Points are place, values of the seeds, and colour.
    """
    ordered = sorted(points, key=lambda one: stats.mean(one[1]))
    for count in range(len(ordered) // MOST_FAR, 0, -1):
        near = [value for _, values, _ in ordered[:-count] for value in values]
        span = max(near) - min(near)
        if stats.mean(ordered[-count][1]) - max(near) > FAR * span:
            axes.set_ylim(min(near) - 0.05 * span, max(near) + (0.05 + 0.1 * count) * span)
            for row, (place, values, color) in enumerate(reversed(ordered[-count:])):
                where: Any = {"xy": (place, 1.0), "xycoords": axes.get_xaxis_transform(), "xytext": (0, -7 * row)}
                text = f"{stats.mean(values):.3g}, above"
                style: Any = {"textcoords": "offset points", "fontsize": 6, "ha": "center", "va": "top"}
                axes.annotate(text, color=color, **where, **style).set_in_layout(False)
            return
