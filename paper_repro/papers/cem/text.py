"""What CEM's tables and figures of language models share: perplexities, gains, and how both are drawn and judged."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, Place, combine, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PERPLEXITY = "perplexity"
MARKERS = ("o", "s", "^", "D", "v")
"""By size."""


class PerplexityFigure(figures.Figure):
    """Its rows are the finished runs, one each, with place, parameters, tokens, seed and perplexity."""

    metric: str | None = PERPLEXITY
    marks = "Faint dots: seeds; marks and lines: means over seeds."

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for key in self.view.points:
            place = dict(key)
            counted = {
                "parameters": int(self.view.counted("parameters", place) or 0),
                "tokens": tokens(self.view, place),
            }
            for seed, value in sorted(self.view.samples(PERPLEXITY, place).items()):
                found.append({**place, **counted, "seed": seed, PERPLEXITY: round(value, 8)})
        return found

    @property
    def split(self) -> str:
        """The split that the perplexity is of: test at scale paper, as in the paper, else validation."""
        return "test" if self.view.scale_name == "paper" else "validation"

    def label(self, axis: str, value: str) -> str:
        return self.artifact.axes[axis].values[value].label

    def color(self, model: str) -> str:
        return palette.model(self.artifact.id, model)


class ParametersFigure(PerplexityFigure):
    """Perplexity against parameters, a mark for each model and size, beside Llama's its training tokens (2a, 2b)."""

    size = (5.5, 3.8)
    marks = "Small dots and rings: seeds; marks: means over seeds."

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        from matplotlib.ticker import EngFormatter

        axes = canvas.subplots()
        models = self.artifact.axes["model"].values
        places: dict[tuple[str, ...], tuple[int, int]] = {
            (row["size"], row["model"]): (row["parameters"], row["tokens"]) for row in rows
        }
        heights = means(rows, "size", "model")
        colors = [self.color(model) for model in models]
        for index, (model, marker) in enumerate(zip(models, ("D", "o", "^"), strict=True)):
            own, color = [row for row in rows if row["model"] == model], colors[index]
            hollow = color in colors[index + 1 :]  # two settings of one model
            dots(axes, [row["parameters"] for row in own], own, color, hollow)
            points = [(places[found], height) for found, height in heights.items() if found[1] == model]
            if points:
                counts = [count for (count, _), _ in points]
                style: Any = {"color": color, "label": self.label("model", model), "markersize": 6, "zorder": 3}
                style |= {"markerfacecolor": "none"} if hollow else {}
                axes.plot(counts, [height for _, height in points], marker, **style)
            for (count, trained), height in points if model == "llama" else ():
                text, corner = f"{count_text(trained)} tokens", (-9, 0)
                axes.annotate(
                    text,
                    (count, height),
                    textcoords="offset points",
                    xytext=corner,
                    fontsize=7,
                    ha="right",
                    va="center",
                )
        axes.set(xlabel="parameters", ylabel=f"{self.split} perplexity")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.margins(0.15)


def tokens(view: View, place: Place) -> int:
    """Return the number of tokens that a run at this place trains on."""
    counts = (view.counted(name, place) or 0 for name in ("steps", "batches", "windows", "window"))
    return round(math.prod(counts))


def chosen(view: View, axis: str) -> list[str]:
    """Return the values of an axis that the scale runs, in the artifact's order."""
    found = {dict(key)[axis] for key in view.points}
    return [value for value in view.artifact.axes[axis].values if value in found]


def means(rows: Iterable[Row], *names: str) -> dict[tuple[str, ...], float]:
    """Return the mean perplexity over seeds, by the values of those columns, in the order of the rows."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row[PERPLEXITY])
    return {values: intervals.mean(found) for values, found in groups.items()}


def dots(axes: "Axes", places: Sequence[float], rows: Sequence[Row], color: str, hollow: bool = False) -> None:
    """Draw every seed as a faint dot, or as a small ring."""
    style: Any = {"s": 8, "color": color, "alpha": 0.35, "linewidths": 0}
    if hollow:
        style = {"s": 8, "facecolors": "none", "edgecolors": color, "alpha": 0.6, "linewidths": 0.7}
    if rows:
        axes.scatter(places, [row[PERPLEXITY] for row in rows], **style)


def count_text(count: float) -> str:
    """Write a count briefly: 1,024,000 is 1.02M, 1.73e9 is 1.73B."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{letter}"
    return f"{count:.0f}"


def gains(view: View, worse: Place, better: Place) -> dict[int, float]:
    """Return log perplexity at one place less that at another, for the seeds that both have."""
    losses = [{seed: math.log(value) for seed, value in view.samples(PERPLEXITY, at).items()} for at in (worse, better)]
    return {seed: losses[0][seed] - losses[1][seed] for seed in losses[0].keys() & losses[1].keys()}


def judge_larger_gain(
    view: View, comparisons: Mapping[str, tuple[tuple[Place, Place], tuple[Place, Place]]]
) -> Judgement:
    """Return whether at every size what is gained from one place to another is above what a second such pair gains, and
    above 0: a smaller loss is no gain.

    Args:
        view: with perplexities.
        comparisons: by a word for it, the pair with the larger gain and the other; places without their size.
    """
    parts = []
    for size in chosen(view, "size"):
        for word, pairs in comparisons.items():
            places = [({**one, "size": size}, {**two, "size": size}) for one, two in pairs]
            found = guarded(view, partial(_gains_more, places=places))
            label = view.artifact.axes["size"].values[size].label
            name = f"{label}, {word}" if word else label
            parts.append((name, found))
            alone = guarded(view, partial(_gains, pair=places[0]))
            parts.append((f"{name}: a gain at all", alone))
    return combine(parts, FAILS, HOLDS)


def _gains_more(view: View, places: Sequence[tuple[Place, Place]]) -> Judgement:
    return _above(*(gains(view, *pair) for pair in places))


def _gains(view: View, pair: tuple[Place, Place]) -> Judgement:
    gained = gains(view, *pair)
    return _above(gained, dict.fromkeys(gained, 0.0))


def _above(larger: Mapping[int, float], smaller: Mapping[int, float]) -> Judgement:
    if not larger or not smaller:
        return Judgement(UNDECIDED, "not run")
    found = intervals.compare(larger, smaller)
    numbers = f"difference {found.mean:.4g} [{found.low:.4g}, {found.high:.4g}]"
    both = f"gains of {intervals.mean(list(larger.values())):.4g} and {intervals.mean(list(smaller.values())):.4g} nats"
    return tested(found, f"{both}, {numbers}", 0.0)
