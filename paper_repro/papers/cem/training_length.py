"""CEM, ours: the gain of a second inner step against the length of training."""

import math
from collections.abc import Sequence

from paper_repro.papers.cem.text import PERPLEXITY, PerplexityFigure, chosen, tokens
from paper_repro.tables import plots
from paper_repro.tables.figure import Canvas, Row
from paper_repro.tables.table import count_text


class GainFigure(PerplexityFigure):
    """Nats that T = 2 gains over T = 1 against the tokens of training."""

    size = (5.0, 3.4)
    metric = None

    def rows(self) -> list[Row]:
        found: list[Row] = []
        axes = ("size", "model", "length")
        for place in dict.fromkeys(tuple((axis, dict(key)[axis]) for axis in axes) for key in self.view.points):
            one, two = ({**dict(place), "steps": steps} for steps in ("t1", "t2"))
            losses = [self.view.samples(PERPLEXITY, at) for at in (one, two)]
            head: Row = {**dict(place), "tokens": tokens(self.view, two)}
            for seed in sorted(losses[0].keys() & losses[1].keys()):
                gain = math.log(losses[0][seed]) - math.log(losses[1][seed])
                found.append({**head, "seed": seed, "gain": round(gain, 8)})
        return found

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        axes.axhline(0, color=plots.RULE, linestyle="--", linewidth=0.8)
        for size, marker, end in self.sizes():
            for model in chosen(self.view, "model"):
                own = [(row["tokens"], row["gain"]) for row in rows if (row["size"], row["model"]) == (size, model)]
                plots.seeds_and_mean(axes, own, self.color(model), f"{self.label('model', model)}{end}", "-", marker)
        counts = sorted({row["tokens"] for row in rows})
        axes.set(xlabel="tokens of training", ylabel="gain of T = 2 over T = 1 (nats per token)", xscale="log")
        axes.set_xticks(counts, labels=[count_text(count) for count in counts])
        axes.margins(x=0.1)
