"""The figures of CEM's language models: their rows, and effects in percent of perplexity."""

import math
from collections.abc import Sequence
from typing import Any

from paper_repro.tables import figure, plots, stats
from paper_repro.tables.claims import Place
from paper_repro.tables.view import count_text

PERPLEXITY, RATE = "perplexity", "lr"
MARKERS = ("o", "s", "^", "D", "v")
"""By size."""


class PerplexityFigure(figure.Figure):
    """A row for each finished run; of several rates only the best, by validation loss."""

    metric: str | None = PERPLEXITY

    def rows(self) -> list[figure.Row]:
        found: list[figure.Row] = []
        for place in self.view.places():
            if RATE in place:
                others = {axis: value for axis, value in place.items() if axis != RATE}
                if place[RATE] != self.view.best(others, RATE, "val_loss"):
                    continue
            parameters = int(self.view.counted("parameters", place) or 0)
            factors = (self.view.counted(name, place) or 0 for name in ("steps", "batches", "windows", "window"))
            head: figure.Row = {**place, "parameters": parameters, "tokens": round(math.prod(factors))}
            for seed, value in sorted(self.view.samples(PERPLEXITY, place).items()):
                found.append({**head, "seed": seed, PERPLEXITY: round(value, 8)})
        return found

    @property
    def split(self) -> str:
        """The split whose perplexity is drawn: test where there is one, as in the paper, else validation."""
        return "test" if self.view.plan.scale_name == "paper" or "test_loss" in self.artifact.metrics else "validation"

    def sizes(self) -> list[tuple[str, str, str]]:
        """Return each size with its marker and, where there are several, the end of its labels."""
        found = self.view.chosen("size")
        ends = [f", {self.view.label('size', size)}" if len(found) > 1 else "" for size in found]
        return list(zip(found, MARKERS, ends, strict=False))


class EffectFigure(PerplexityFigure):
    """By how much perplexity is higher at one place than at another, in percent and seed by seed; a line for each pair.

    The dashed line is the limit of the artifact's first claim.
    """

    size = (6.5, 2.4)
    panels = slice(0)
    marks = "Faint dots: pairs of runs with one seed; marks, bars: means, intervals of 95 %; dashed: the claim's limit."
    reference = "llama"
    what = "perplexity above Llama's (%)"

    def pairs(self) -> list[tuple[Place, Place]]:
        """Return the places that are compared, without their size."""
        models = self.artifact.axes["model"].values
        return [({"model": model}, {"model": self.reference}) for model in models if model != self.reference]

    def named(self, row: figure.Row, end: str) -> str:
        """Return the two lines beside a pair, from a row of its first side."""
        return f"{self.view.label('model', row['model'])}{end}\n{count_text(row['parameters'])} parameters"

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        axes, labels = canvas.subplots(), list[str]()
        for size, marker, end in self.sizes():
            for of, to in self.pairs():
                left, right = (_by_seed(rows, {**place, "size": size}) for place in (of, to))
                gaps = [math.log(left[seed][PERPLEXITY] / right[seed][PERPLEXITY]) for seed in left if seed in right]
                if not gaps:
                    continue
                row, color = len(labels), self.color(of["model"])
                labels.append(self.named(next(iter(left.values())), end))
                found = stats.of(gaps)
                mean, low, high = (100 * math.expm1(value) for value in (found.mean, found.low, found.high))
                axes.scatter([100 * math.expm1(gap) for gap in gaps], [row] * len(gaps), s=9, color=color, alpha=0.35)
                axes.plot([mean], [row], marker, color=color)
                if len(gaps) > 1:
                    axes.plot([low, high], [row, row], color=color)
                text: Any = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "fontsize": 8}
                axes.annotate(f"{mean:+.1f} %", (mean, row), color=color, **text)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(max(len(labels), 1) - 0.5, -0.6)
        axes.axvline(0, color=plots.RULE, linewidth=0.8)
        for limit in (limit for claim in self.artifact.claims[:1] for limit in claim.threshold.limits):
            axes.axvline(100 * (limit - 1), color=plots.RULE, linestyle="--", linewidth=1)
        axes.margins(x=0.1)
        axes.set_xlabel(f"{self.split} {self.what}")


class DiagonalFigure(EffectFigure):
    """Figure 3b: against CEM attention with the shared diagonal."""

    reference = "shared"
    what = "perplexity above that with the shared diagonal (%)"

    def named(self, row: figure.Row, end: str) -> str:
        return super().named(row, end) if row["model"] == "llama" else f"diagonal: {super().named(row, end)}"


class ReuseFigure(EffectFigure):
    """Figures 3c and 4: a second pass through Llama's part, and a second step of CEM's, against the first."""

    what = "perplexity with T = 2 over T = 1 (%)"

    def pairs(self) -> list[tuple[Place, Place]]:
        axes = self.artifact.axes
        places = [
            {"model": m, "preconditioner": p} for m in axes["model"].values for p in axes["preconditioner"].values
        ]
        return [({**place, "steps": "t2"}, {**place, "steps": "t1"}) for place in places]

    def named(self, row: figure.Row, end: str) -> str:
        kind = self.view.label("preconditioner", row["preconditioner"])
        below = "" if row["model"] == "llama" else f"\npreconditioner: {kind}"
        return f"{self.view.label('model', row['model'])}{end}{below}"


def _by_seed(rows: Sequence[figure.Row], place: Place) -> dict[int, figure.Row]:
    return {row["seed"]: row for row in rows if place.items() <= row.items()}
