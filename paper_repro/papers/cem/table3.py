"""CEM, Table 3 as a figure: test RMSE against the number of inner steps, one panel a kernel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, intervals
from paper_repro.artifacts.figures import OWN_COLOR, PAPER_COLOR, REFERENCE_COLOR, Row
from paper_repro.artifacts.views import values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

METRIC = "test_rmse"
STEPS = {"t1": 1, "t2": 2, "t4": 4, "t8": 8}
FLAT = {"plain": ":", "gated": "--"}
"""Models without inner steps are drawn as horizontal lines."""
COLORS = {"paper": PAPER_COLOR, "reference": REFERENCE_COLOR, "yours": OWN_COLOR, "ours": OWN_COLOR}
SHIFTS = {"paper": 1.05, "reference": 0.95, "yours": 1.0, "ours": 1.0}
"""Error bars of different sources stand beside each other."""


class Figure(figures.Figure):
    size = (11.0, 2.9)

    def floors(self) -> list[figures.FloorLine]:
        """Return each kernel's floors in its panel."""
        found = []
        for panel, kernel in enumerate(self.artifact.axes["kernel"].values):
            found += figures.floor_lines(self.view, METRIC, {"kernel": kernel}, panel)
        return found

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for key, point in self.view.points.items():
            place = dict(key)
            if (printed := self.view.printed(key, METRIC)) is not None:
                rows.append({**place, "source": "paper", "mean": printed.mean, "std": printed.std})
            sources = {"reference": point.reference, "yours": point.own}
            if self.view.own_root_is_reference:
                sources = {"ours": point.own}
            for source, found in sources.items():
                if numbers := list(values(found, METRIC).values()):
                    mean, std = intervals.mean(numbers), intervals.sample_std(numbers) or 0.0
                    rows.append({**place, "source": source, "mean": round(mean, 8), "std": round(std, 8)})
        return rows

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        kernels = self.artifact.axes["kernel"].values
        panels = canvas.subplots(1, len(kernels), sharex=True)
        for axes, (kernel, spec) in zip(panels, kernels.items(), strict=True):
            own = [row for row in rows if row["kernel"] == kernel]
            _panel(axes, own)
            axes.set_ylim(0, 1.05 * max((row["mean"] + (row["std"] or 0.0) for row in own), default=1.0))
            axes.set(title=spec.label, xlabel="inner steps T")
        panels[0].set_ylabel(self.artifact.metrics[METRIC].title)
        handles, labels = panels[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside upper center", ncols=6)


def _panel(axes: "Axes", rows: Sequence[Row]) -> None:
    for source, color in COLORS.items():
        own = {row["model"]: row for row in rows if row["source"] == source}
        curve = [(steps, own[model]) for model, steps in STEPS.items() if model in own]
        if curve:
            places = [steps * SHIFTS[source] for steps, _ in curve]
            means, spreads = [row["mean"] for _, row in curve], [row["std"] for _, row in curve]
            style: Any = {"color": color, "marker": "o", "markersize": 3, "capsize": 2}
            axes.errorbar(places, means, spreads, label=f"CEM, {source}", **style)
        for model, line in FLAT.items():
            if model in own:
                label = f"{model.capitalize()}, {source}"
                axes.axhline(own[model]["mean"], color=color, linestyle=line, linewidth=1, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(STEPS.values()), labels=[str(steps) for steps in STEPS.values()])
    axes.minorticks_off()
