"""CEM, ours: what a second inner step gains, against the length of training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, palette
from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.papers.cem.text import (
    MARKERS,
    PerplexityFigure,
    chosen,
    count_text,
    gains,
    judge_larger_gain,
    tokens,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MODELS = ("mlp", "attention")
Pair = tuple[dict[str, str], dict[str, str]]


class GainFigure(PerplexityFigure):
    """Nats that T = 2 gains over T = 1 against the tokens of training: dots are seeds, lines their means."""

    size = (5.0, 3.6)
    marks = "Faint dots: seeds; marks and lines: means over seeds."
    metric = None

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for size in chosen(self.view, "size"):
            for model in chosen(self.view, "model"):
                for length in chosen(self.view, "length"):
                    worse, better = ({**place, "size": size} for place in _pair(model, length))
                    place = {"size": size, "model": model, "length": length, "tokens": tokens(self.view, better)}
                    gained = sorted(gains(self.view, worse, better).items())
                    found += [{**place, "seed": seed, "gain": round(gain, 8)} for seed, gain in gained]
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        axes.axhline(0, color=palette.RULE, linestyle="--", linewidth=0.8)
        for size, marker in zip(chosen(self.view, "size"), MARKERS, strict=False):
            for model in MODELS:
                own = [(row["tokens"], row["gain"]) for row in rows if (row["size"], row["model"]) == (size, model)]
                figures.seeds_and_mean(axes, own, self.color(model), self.label("model", model), marker=marker)
        axes.set(xlabel="tokens of training", ylabel="gain of T = 2 over T = 1 (nats)", xscale="log")
        counts = sorted({row["tokens"] for row in rows})
        axes.set_xticks(counts, labels=[count_text(count) for count in counts])
        axes.minorticks_off()
        axes.margins(x=0.1)


def judge_pays_more_in_long_training(view: View) -> Judgement:
    """Return the gain of T = 2 over T = 1 after the longer training, above that after the shorter one."""
    comparisons: Mapping[str, tuple[Pair, Pair]] = {
        view.artifact.axes["model"].values[model].label: (_pair(model, "x4"), _pair(model, "x1"))
        for model in chosen(view, "model")
    }
    return judge_larger_gain(view, comparisons)


def _pair(model: str, length: str) -> Pair:
    place = {"model": model, "length": length}
    return {**place, "steps": "t1"}, {**place, "steps": "t2"}
