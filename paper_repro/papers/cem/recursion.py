"""Figures 2c and 2d: perplexity against the number of inner steps, with each preconditioner."""

from collections.abc import Sequence

from paper_repro.papers.cem.text import PERPLEXITY, PerplexityFigure
from paper_repro.tables import plots, stats
from paper_repro.tables.figure import Canvas, Row

PRECONDITIONERS = {"none": ":", "diagonal": "--", "diagonal_low_rank": "-"}
"""The line of each."""


class StepsFigure(PerplexityFigure):
    """Perplexity against T, a line for each preconditioner and a marker for each size; Llama's are level lines."""

    size = (6.5, 3.6)

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        for size, marker, end in self.sizes():
            own = [row for row in rows if row["size"] == size]
            llama = [row[PERPLEXITY] for row in own if row["model"] == "llama"]
            if llama:
                axes.axhline(stats.mean(llama), color=self.color("llama"), linewidth=1, label=f"Llama{end}")
            for kind, line in PRECONDITIONERS.items():
                found = [row for row in own if row["model"] != "llama" and row["preconditioner"] == kind]
                if found:
                    model = found[0]["model"]
                    self.legend_title = f"{self.view.label('model', model)}, by preconditioner, and Llama"
                    points = [(int(self.view.label("steps", row["steps"])), row[PERPLEXITY]) for row in found]
                    label = f"{self.view.label('preconditioner', kind)}{end}"
                    plots.seeds_and_mean(axes, points, self.color(model), label, line, marker)
        steps = [int(self.view.label("steps", value)) for value in self.view.chosen("steps")]
        axes.set(xlabel="inner steps T", ylabel=f"{self.split} perplexity", xscale="log")
        axes.set_xticks(steps, labels=[str(count) for count in steps])
        axes.margins(y=0.15)  # the names of baselines at the edge stand beside the line of Llama
