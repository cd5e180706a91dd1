"""Figures of inner steps: against their number (2c, 2d), and against plain reuse of the same part (3c, 4)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import palette
from paper_repro.artifacts.claims import Judgement, Place
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.papers.cem.text import (
    MARKERS,
    PerplexityFigure,
    chosen,
    dots,
    judge_larger_gain,
    means,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PRECONDITIONERS = {"none": ":", "diagonal": "--", "diagonal_low_rank": "-"}
"""The line of each."""
ASIDE = 0.05
"""How far T = 1 stands left of the middle of its bar, and T = 2 right of it: neither hides the other."""


class StepsFigure(PerplexityFigure):
    """Perplexity against T, a line for each preconditioner and a marker for each size; Llama's are level lines."""

    size = (6.5, 3.8)

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        counts = {value: int(self.label("steps", value)) for value in self.artifact.axes["steps"].values}
        (model,) = _own_models(self.view)
        color = self.color(model)
        sizes = chosen(self.view, "size")
        for size, marker in zip(sizes, MARKERS, strict=False):
            own = [row for row in rows if row["size"] == size]
            for height in means((row for row in own if row["model"] == "llama"), "size").values():
                axes.axhline(height, color=self.color("llama"), linewidth=1)
            for kind, style in PRECONDITIONERS.items():
                line = [row for row in own if row["model"] != "llama" and row["preconditioner"] == kind]
                dots(axes, [counts[row["steps"]] for row in line], line, color)
                points = [(counts[steps], height) for (steps,), height in means(line, "steps").items()]
                if points:
                    axes.plot(*zip(*points, strict=True), style, color=color, marker=marker, markersize=4)
        steps = [counts[value] for value in chosen(self.view, "steps")]
        axes.set(xlabel="inner steps T", ylabel=f"{self.split} perplexity", xscale="log")
        axes.set_xticks(steps, labels=[str(count) for count in steps])
        axes.minorticks_off()
        axes.plot([], [], color=self.color("llama"), linewidth=1, label="Llama")
        for kind, style in PRECONDITIONERS.items():
            label = f"{self.label('model', model)}, P: {self.label('preconditioner', kind)}"
            axes.plot([], [], style, color=color, label=label)
        _name_sizes(self, axes)


class ReuseFigure(PerplexityFigure):
    """From one pass or step to two: reuse of Llama's part, and CEM's with its preconditioners; a colour a model."""

    size = (8.0, 3.6)
    marks = (
        "Small rings and faint dots: seeds at T = 1 and T = 2; large rings and discs: their means; a bar leads from "
        "one to the other."
    )

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        sizes = chosen(self.view, "size")
        found = {(row["model"], row["preconditioner"]) for row in rows}
        models = self.artifact.axes["model"].values
        kinds = self.artifact.axes["preconditioner"].values
        groups = [(model, kind) for model in models for kind in kinds if (model, kind) in found]
        for number, (model, kind) in enumerate(groups):
            for index, size in enumerate(sizes):
                own = [row for row in rows if (row["model"], row["preconditioner"], row["size"]) == (model, kind, size)]
                place = number + 0.7 * ((index + 0.5) / len(sizes) - 0.5)
                self._pair(axes, own, place, model, MARKERS[index])
        axes.set_xticks(range(len(groups)), labels=[self._title(model, kind) for model, kind in groups], fontsize=7)
        axes.set_ylabel(f"{self.split} perplexity")
        axes.use_sticky_edges = False  # of the bars, which would cut the markers at their ends
        _name_sizes(self, axes)
        for face, label in ((palette.GROUND, "T = 1"), (palette.RULE, "T = 2")):
            axes.plot([], [], "o", color=palette.RULE, markerfacecolor=face, label=label)

    def _pair(self, axes: "Axes", rows: Sequence[Row], place: float, model: str, marker: str) -> None:
        heights, color = {steps: height for (steps,), height in means(rows, "steps").items()}, self.color(model)
        if len(heights) == 2:
            low, high = sorted(heights.values())
            axes.bar(place, high - low, 3 * ASIDE, low, color=color, alpha=0.25, zorder=1)
        for steps, face, shift in (("t1", palette.GROUND, -ASIDE), ("t2", color, ASIDE)):
            own = [row for row in rows if row["steps"] == steps]
            dots(axes, [place + shift] * len(own), own, color, hollow=steps == "t1")
            if steps in heights:
                axes.plot([place + shift], [heights[steps]], marker, color=color, markerfacecolor=face, markersize=6)

    def _title(self, model: str, kind: str) -> str:
        if model == "llama":
            return self.label("model", model).replace(", ", ",\n")
        return f"{self.label('model', model)}, P: {self.label('preconditioner', kind)}".replace(", ", ",\n")


def _name_sizes(figure: PerplexityFigure, axes: "Axes") -> None:
    sizes = chosen(figure.view, "size")
    for size, marker in zip(sizes if len(sizes) > 1 else (), MARKERS, strict=False):
        axes.plot([], [], marker, color=palette.RULE, label=figure.label("size", size))


def judge_recursion_gains_more_than_reuse(view: View) -> Judgement:
    """Judge what the second inner step gains each CEM model and preconditioner, above what a second pass gains."""
    reuse = _pair("llama", "none")
    labels = {axis: view.artifact.axes[axis].values for axis in ("model", "preconditioner")}
    comparisons = {
        f"{labels['model'][model].label}, P: {labels['preconditioner'][kind].label}": (_pair(model, kind), reuse)
        for model in _own_models(view)
        for kind in chosen(view, "preconditioner")
    }
    return judge_larger_gain(view, comparisons)


def judge_preconditioner_gains_more_at_t2(view: View) -> Judgement:
    """Judge what the diagonal-plus-low-rank preconditioner gains at T = 2, above what it gains at T = 1."""
    (model,) = _own_models(view)

    def pair(steps: str) -> tuple[Place, Place]:
        place = {"model": model, "steps": steps}
        return {**place, "preconditioner": "none"}, {**place, "preconditioner": "diagonal_low_rank"}

    return judge_larger_gain(view, {"": (pair("t2"), pair("t1"))})


def _own_models(view: View) -> list[str]:
    return [model for model in view.artifact.axes["model"].values if model != "llama"]


def _pair(model: str, kind: str) -> tuple[dict[str, str], dict[str, str]]:
    place = {"model": model, "preconditioner": kind}
    return {**place, "steps": "t1"}, {**place, "steps": "t2"}
