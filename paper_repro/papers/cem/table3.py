"""CEM, Table 3 as a figure: test RMSE against the number of inner steps, one panel a kernel."""

from collections.abc import Mapping, Sequence
from typing import Any

from paper_repro.tables import figure, stats
from paper_repro.tables.figure import Axes, BaselineLine, Canvas, PrintedNumber, Row, panel_lines
from paper_repro.tables.view import values

METRIC = "test_rmse"
STEPS = {"t1": 1, "t2": 2, "t4": 4, "t8": 8}
FLAT = ("plain", "gated")
"""Models without inner steps are drawn as horizontal lines."""
PAPER = "paper"
OURS = "ours"
SHIFT = 1.06
"""The paper's error bars stand beside ours."""


class RegressionFigure(figure.Figure):
    size = (11.0, 2.9)
    marks = "Marks and lines: means over seeds; bars: one standard deviation over seeds to each side."

    def baselines(self) -> list[BaselineLine]:
        return panel_lines(self.view, [(METRIC, {"kernel": name}) for name in self.artifact.axes["kernel"].values])

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for key, point in self.view.points.items():
            if (printed := self.artifact.printed(key, METRIC)) is not None:
                rows.append({**dict(key), "source": PAPER, "mean": printed.mean, "std": printed.std})
            if numbers := list(values(self.view.results(point), METRIC).values()):
                mean, std = stats.mean(numbers), stats.sample_std(numbers) or 0.0
                rows.append({**dict(key), "source": OURS, "mean": round(mean, 8), "std": round(std, 8)})
        return rows

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        kernels, unit = list(self.artifact.axes["kernel"].values), self.artifact.metrics[METRIC].unit
        found = []
        for row in (row for row in rows if row["source"] == PAPER):
            model, panel = row["model"], kernels.index(row["kernel"])
            color = self.color(model)
            if model in STEPS:
                place = SHIFT * STEPS[model]
                found.append(PrintedNumber("CEM", row["mean"], unit, panel, place, row["std"], color=color))
            else:
                found.append(PrintedNumber(model.capitalize(), row["mean"], unit, panel, color=color))
        return found

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        kernels = self.artifact.axes["kernel"].values
        panels = canvas.subplots(1, len(kernels), sharex=True)
        for axes, (kernel, spec) in zip(panels, kernels.items(), strict=True):
            own = [row for row in rows if row["kernel"] == kernel]
            self._panel(axes, {row["model"]: row for row in own if row["source"] == OURS})
            # The names of the baselines, which are far above, stand in a strip of their own.
            axes.set_ylim(0, 1.3 * max((row["mean"] + (row["std"] or 0.0) for row in own), default=1.0))
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(STEPS.values()), labels=[str(steps) for steps in STEPS.values()])
            axes.set(title=spec.label, xlabel="inner steps T")
        panels[0].set_ylabel("test RMSE")

    def _panel(self, axes: Axes, rows: Mapping[str, Row]) -> None:
        for model in (model for model in FLAT if model in rows):
            label = f"{model.capitalize()}, {OURS}"
            axes.axhline(rows[model]["mean"], linewidth=1, label=label, color=self.color(model))
        curve = [(steps, rows[model]) for model, steps in STEPS.items() if model in rows]
        if curve:
            places, means, spreads = zip(*((place, row["mean"], row["std"]) for place, row in curve), strict=True)
            style: Any = {"color": self.color("t1"), "marker": "o", "markersize": 3, "capsize": 2}
            axes.errorbar(places, means, spreads, label=f"CEM, {OURS}", **style)
