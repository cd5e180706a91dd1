"""CEM, Table 3 as a figure: test RMSE against the number of inner steps, one panel a kernel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro import figures, intervals
from paper_repro.figures import OWN_COLOR, PAPER_COLOR, REFERENCE_COLOR, Row
from paper_repro.views import values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

METRICS = ("train_rmse", "test_rmse")
STEPS = {"t1": 1, "t2": 2, "t4": 4, "t8": 8}
FLAT = {"plain": ":", "gated": "--"}
"""Models without inner steps are drawn as horizontal lines."""
COLORS = {"paper": PAPER_COLOR, "reference": REFERENCE_COLOR, "yours": OWN_COLOR, "ours": OWN_COLOR}


class Figure3(figures.Figure):
    size = (11.0, 4.4)

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for key, point in self.view.points.items():
            sources: dict[str, Any] = (
                {"ours": point.own}
                if self.view.own_root_is_reference
                else {
                    "reference": point.reference,
                    "yours": point.own,
                }
            )
            for metric in METRICS:
                place = {**dict(key), "metric": metric}
                if (printed := self.view.printed(key, metric)) is not None:
                    rows.append({**place, "source": "paper", "mean": printed.mean, "std": printed.std})
                for source, found in sources.items():
                    if numbers := list(values(found, metric).values()):
                        mean, std = intervals.mean(numbers), intervals.sample_std(numbers) or 0.0
                        rows.append({**place, "source": source, "mean": round(mean, 8), "std": round(std, 8)})
        return rows

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        kernels = self.artifact.axes["kernel"].values
        grid = canvas.subplots(len(METRICS), len(kernels), sharex=True, sharey="col")
        for line, metric in zip(grid, METRICS, strict=True):
            for axes, (kernel, spec) in zip(line, kernels.items(), strict=True):
                own = [row for row in rows if row["kernel"] == kernel and row["metric"] == metric]
                _panel(axes, own)
                if metric == METRICS[0]:
                    axes.set_title(spec.label)
                else:
                    axes.set_xlabel("inner steps T")
            line[0].set_ylabel(self.artifact.metrics[metric].title)
        handles, labels = grid[0][0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=6)


def _panel(axes: "Axes", rows: Sequence[Row]) -> None:
    for source, color in COLORS.items():
        own = {row["model"]: row for row in rows if row["source"] == source}
        curve = [(steps, own[model]) for model, steps in STEPS.items() if model in own]
        if curve:
            means = [row["mean"] for _, row in curve]
            spreads = [row["std"] for _, row in curve]
            shift = 1.04 if source == "paper" else 1.0
            places = [steps * shift for steps, _ in curve]
            axes.errorbar(
                places, means, spreads, color=color, marker="o", markersize=3, capsize=2, label=f"CEM, {source}"
            )
        for model, style in FLAT.items():
            if model in own:
                label = f"{model.capitalize()}, {source}"
                axes.axhline(own[model]["mean"], color=color, linestyle=style, linewidth=1, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(STEPS.values()), labels=[str(steps) for steps in STEPS.values()])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
