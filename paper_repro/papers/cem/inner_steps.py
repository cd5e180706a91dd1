"""CEM, ours: perplexity and energies against the inner steps at test time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, palette
from paper_repro.artifacts.figures import Row
from paper_repro.papers.cem.text import MARKERS, chosen

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TRAINED = 2
KINDS = {
    "perplexity": "perplexity",
    "energy_attention": "energy of attention (no unit)",
    "energy_feed_forward": "energy of the MLPs (no unit)",
}
MODELS = ("attention", "mlp", "full")


class InnerStepsFigure(figures.Figure):
    """Perplexity and both energies, each against T: dots are seeds, lines their means; the trained T is dashed."""

    size = (10.0, 3.4)
    marks = "Faint dots: seeds; marks and lines: means over seeds; dashed: the number of steps of training."
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
                for model in MODELS:
                    line = [(row["steps"], row["value"]) for row in own if (row["size"], row["model"]) == (size, model)]
                    label = f"{self._label('model', model)}, {self._label('size', size)}"
                    color = palette.model(self.artifact.id, model)
                    figures.seeds_and_mean(axes, line, color, label, marker=marker)
            axes.axvline(TRAINED, color=palette.RULE, linestyle="--", linewidth=0.8)
            steps = sorted({row["steps"] for row in own})
            axes.set(xlabel="inner steps T at test time", title=title, xscale="log")
            axes.set_xticks(steps, labels=[str(number) for number in steps])
            axes.minorticks_off()
        if rows:
            panels[0].set_yscale("log")  # one model at T = 1 is far above all others
            figures.log_ticks(panels[0].yaxis)

    def _label(self, axis: str, value: str) -> str:
        return self.artifact.axes[axis].values[value].label
