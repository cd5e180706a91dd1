"""CEM, Table 3 as a figure: test RMSE against the number of inner steps, one panel a kernel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.floor_marks import FloorLine, floor_lines
from paper_repro.artifacts.printed_numbers import PrintedNumber
from paper_repro.artifacts.views import values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

METRIC = "test_rmse"
STEPS = {"t1": 1, "t2": 2, "t4": 4, "t8": 8}
FLAT = ("plain", "gated")
"""Models without inner steps are drawn as horizontal lines."""
PAPER = "paper"
LINES = {"reference": "--", "yours": "-", "ours": "-"}
SHIFTS = {PAPER: 1.06, "reference": 0.94, "yours": 1.0, "ours": 1.0}
"""Error bars of different sources stand beside each other."""


class Figure(figures.Figure):
    size = (11.0, 2.9)
    marks = "Marks and lines: means over seeds; bars: one standard deviation over seeds to each side."

    def floors(self) -> list[FloorLine]:
        """Return each kernel's floors in its panel."""
        found = []
        for panel, kernel in enumerate(self.artifact.axes["kernel"].values):
            found += floor_lines(self.view, METRIC, {"kernel": kernel}, panel)
        return found

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for key, point in self.view.points.items():
            place = dict(key)
            if (printed := self.view.printed(key, METRIC)) is not None:
                rows.append({**place, "source": PAPER, "mean": printed.mean, "std": printed.std})
            sources = {"reference": point.reference, "yours": point.own}
            if self.view.own_root_is_reference:
                sources = {"ours": point.own}
            for source, found in sources.items():
                if numbers := list(values(found, METRIC).values()):
                    mean, std = intervals.mean(numbers), intervals.sample_std(numbers) or 0.0
                    rows.append({**place, "source": source, "mean": round(mean, 8), "std": round(std, 8)})
        return rows

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        """Return the printed means of each kernel in its panel."""
        kernels, unit = list(self.artifact.axes["kernel"].values), self.artifact.metrics[METRIC].unit
        found = []
        for row in (row for row in rows if row["source"] == PAPER):
            model, color = row["model"], palette.model(self.artifact.id, row["model"])
            place = SHIFTS[PAPER] * STEPS[model] if model in STEPS else None
            label = "CEM" if model in STEPS else model.capitalize()
            std = row["std"] if model in STEPS else None
            panel = kernels.index(row["kernel"])
            found.append(PrintedNumber(label, row["mean"], unit, panel, place, std, color=color))
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        kernels = self.artifact.axes["kernel"].values
        panels = canvas.subplots(1, len(kernels), sharex=True)
        for axes, (kernel, spec) in zip(panels, kernels.items(), strict=True):
            own = [row for row in rows if row["kernel"] == kernel]
            for source in LINES:
                self._panel(axes, [row for row in own if row["source"] == source], source)
            # The labels of the floors, which lie far above, get a strip of their own.
            axes.set_ylim(0, 1.3 * max((row["mean"] + (row["std"] or 0.0) for row in own), default=1.0))
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(STEPS.values()), labels=[str(steps) for steps in STEPS.values()])
            axes.set(title=spec.label, xlabel="inner steps T")
        panels[0].set_ylabel("test RMSE")

    def _panel(self, axes: "Axes", rows: Sequence[Row], source: str) -> None:
        own = {row["model"]: row for row in rows}
        for model in FLAT:
            if model in own:
                style: Any = {"color": palette.model(self.artifact.id, model), "linestyle": LINES[source]}
                axes.axhline(own[model]["mean"], linewidth=1, label=f"{model.capitalize()}, {source}", **style)
        curve = [(steps * SHIFTS[source], own[model]) for model, steps in STEPS.items() if model in own]
        if curve:
            means, spreads = [row["mean"] for _, row in curve], [row["std"] for _, row in curve]
            style = {"color": palette.model(self.artifact.id, "t1"), "linestyle": LINES[source], "capsize": 2}
            places = [place for place, _ in curve]
            axes.errorbar(places, means, spreads, marker="o", markersize=3, label=f"CEM, {source}", **style)
