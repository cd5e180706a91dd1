"""CEM, ours: perplexity and energies against the inner steps at test time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures
from paper_repro.artifacts.figures import Row
from paper_repro.papers.cem.text import MARKERS, chosen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

TRAINED = 2
KINDS = {
    "perplexity": "perplexity",
    "energy_attention": "energy of attention",
    "energy_feed_forward": "energy of the MLPs",
}
COLORS = {"attention": "#E08214", "mlp": "#1B7837", "full": "#2166AC"}


class InnerStepsFigure(figures.Figure):
    """Perplexity and both energies, each against T: dots are seeds, lines their means; the trained T is dashed."""

    size = (10.0, 3.4)
    metric = "perplexity"
    panels = slice(1)

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for key in self.view.points:
            place = dict(key)
            for metric in self.artifact.metrics:
                kind, at_test_time, steps = metric.rpartition("_T")
                if not at_test_time:
                    continue
                for seed, value in sorted(self.view.samples(metric, place).items()):
                    found.append({**place, "kind": kind, "steps": int(steps), "seed": seed, "value": round(value, 8)})
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        panels = canvas.subplots(1, len(KINDS), squeeze=False)[0]
        for axes, (kind, title) in zip(panels, KINDS.items(), strict=True):
            own = [row for row in rows if row["kind"] == kind]
            for size, marker in zip(chosen(self.view, "size"), MARKERS, strict=False):
                for model, color in COLORS.items():
                    line = [row for row in own if (row["size"], row["model"]) == (size, model)]
                    self._line(axes, line, color, marker, f"{self._label('model', model)}, {self._label('size', size)}")
            axes.axvline(TRAINED, color="#999999", linestyle="--", linewidth=0.8)
            steps = sorted({row["steps"] for row in own})
            axes.set(xlabel="inner steps T at test time", title=title, xscale="log")
            axes.set_xticks(steps, labels=[str(number) for number in steps])
            axes.minorticks_off()
        if rows:
            panels[0].legend(fontsize=7)

    def _line(self, axes: "Axes", rows: Sequence[Row], color: str, marker: str, label: str) -> None:
        by_steps: dict[int, list[float]] = {}
        for row in rows:
            by_steps.setdefault(row["steps"], []).append(row["value"])
        if by_steps:
            for steps, values in by_steps.items():
                axes.plot([steps] * len(values), values, ".", color=color, markersize=3)
            means = [sum(values) / len(values) for values in by_steps.values()]
            axes.plot(list(by_steps), means, color=color, marker=marker, markersize=4, label=label)

    def _label(self, axis: str, value: str) -> str:
        return self.artifact.axes[axis].values[value].label
