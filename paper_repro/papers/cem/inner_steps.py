"""CEM, ours: perplexity and energies against the inner steps at test time."""

from collections.abc import Sequence

from paper_repro.papers.cem.text import PERPLEXITY, PerplexityFigure
from paper_repro.tables import plots
from paper_repro.tables.figure import Canvas, Row

TRAINED = 2
KINDS = {
    PERPLEXITY: "perplexity",
    "energy_attention": "energy of attention (no unit)",
    "energy_feed_forward": "energy of the MLPs (no unit)",
}


class InnerStepsFigure(PerplexityFigure):
    """Perplexity and both energies against T; the T of training is dashed."""

    size = (10.0, 3.2)
    marks = "Faint dots: seeds; marks and lines: means over seeds; dashed: the number of steps of training."
    panels = slice(1)

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for place in map(dict, self.view.points):
            for kind, _, steps in (name.rpartition("_T") for name in self.artifact.metrics if "_T" in name):
                for seed, value in sorted(self.view.samples(f"{kind}_T{steps}", place).items()):
                    found.append({**place, "kind": kind, "steps": int(steps), "seed": seed, "value": round(value, 8)})
        return found

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        panels = canvas.subplots(1, len(KINDS))
        for axes, (kind, title) in zip(panels, KINDS.items(), strict=True):
            own = [row for row in rows if row["kind"] == kind]
            for size, marker, end in self.sizes():
                for model in self.view.chosen("model"):
                    line = [(row["steps"], row["value"]) for row in own if (row["size"], row["model"]) == (size, model)]
                    label = f"{self.view.label('model', model)}{end}"
                    plots.seeds_and_mean(axes, line, self.color(model), label, "-", marker)
            axes.axvline(TRAINED, color=plots.RULE, linestyle="--", linewidth=0.8)
            steps = sorted({row["steps"] for row in own})
            axes.set(xlabel="inner steps T at test time", title=title, xscale="log")
            axes.set_xticks(steps, labels=[str(number) for number in steps])
        if rows:
            panels[0].set_yscale("log")  # a model at T = 1 is far above all others
            plots.log_ticks(panels[0].yaxis)
