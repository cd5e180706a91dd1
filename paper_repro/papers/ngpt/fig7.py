"""nGPT, figure 7: final losses against the initial learning rate."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from paper_repro.artifacts import far_points, figures, palette, tables
from paper_repro.artifacts.brackets import bracketed
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.floor_marks import FloorLine, floor_lines
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.views import View
from paper_repro.metrics.learning_rate import LearningRateOptimum, optimal_learning_rate
from paper_repro.papers.ngpt.runs import LOSS, MARKS, chosen, note_best, runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

FEWEST_RATES = 3
"""Points that an interpolant over the rates needs."""


class Figure7(figures.Figure):
    """One panel for each context and budget: the loss against the rate, a line a model."""

    size = (10.0, 5.2)
    marks = f"{MARKS} {far_points.MARKS}"

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for run in runs(self.view):
            where = {axis: run.place[axis] for axis in ("context", "size", "budget", "model")}
            window = int(self.view.counted("window", run.place) or 0)
            numbers = {"window": window, "tokens": int(run.tokens), "rate": run.rate, "seed": run.seed}
            found.append({**where, **numbers, LOSS: round(run.loss, 8)})
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        contexts, budgets = chosen(self.view, "context"), chosen(self.view, "budget")
        panels = canvas.subplots(len(contexts), len(budgets), squeeze=False)
        for line, context in zip(panels, contexts, strict=True):
            for axes, budget in zip(line, budgets, strict=True):
                own = [row for row in rows if (row["context"], row["budget"]) == (context, budget)]
                if own:
                    self._panel(axes, own)
                else:
                    axes.set_axis_off()

    def _panel(self, axes: "Axes", own: Sequence[Row]) -> None:
        seeds: list[far_points.Seeds] = []
        for size, style in zip(chosen(self.view, "size"), ("-", "--"), strict=False):
            for model in chosen(self.view, "model"):
                points = [(row["rate"], row[LOSS]) for row in own if (row["size"], row["model"]) == (size, model)]
                label, color = self.artifact.axes["model"].values[model].label, palette.model(self.artifact.id, model)
                figures.seeds_and_mean(axes, points, color, label, style)
                seeds += far_points.gathered(points, color)
        axes.set_xlabel("initial learning rate")
        axes.set_ylabel("final validation loss (nats per token)", fontsize=8)
        axes.set_title(f"window {own[0]['window']:,}, {own[0]['tokens']:,} tokens", fontsize=8)
        axes.set_xscale("log")
        axes.set_xticks(sorted({row["rate"] for row in own}), minor=False)
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.tick_params(axis="x", labelsize=7)
        far_points.number_far_points(axes, seeds)

    def floors(self) -> list[FloorLine]:
        """Return each context's floor in its panels: windows of another length are other data."""
        budgets = len(chosen(self.view, "budget"))
        return [
            line
            for number, context in enumerate(chosen(self.view, "context"))
            for panel in range(budgets)
            for line in floor_lines(self.view, LOSS, {"context": context}, number * budgets + panel)
        ]


class Optima(tables.Table):
    def remarks(self) -> list[str]:
        """Say where each sweep is lowest."""
        found = []
        for place, optimum in _optima(self.view):
            labels = [self.artifact.axes[axis].values[value].label for axis, value in place.items()]
            found.append(f"{', '.join(labels)}: {optimum}.")
        return found


def judge_best_rate_is_bracketed(view: View) -> Judgement:
    """Judge whether some rate is better than each edge of the grid, at the longest budget of each size, context and
    model.
    """
    longest: dict[tuple[str, ...], tuple[dict[str, str], LearningRateOptimum]] = {}
    for budget in chosen(view, "budget"):
        found = [(place, optimum) for place, optimum in _optima(view.unwatched()) if place["budget"] == budget]
        longest |= {(place["size"], place["context"], place["model"]): (place, best) for place, best in found}
    parts = []
    for place, optimum in longest.values():
        labels = [view.artifact.axes[axis].values[value].label for axis, value in place.items()]
        parts.append((", ".join(labels), guarded(view, partial(_bracketed, place=place, text=str(optimum)))))
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "not run")


def _bracketed(view: View, place: Mapping[str, str], text: str) -> Judgement:
    note_best(view, None, **place)
    sweep: dict[float, dict[int, float]] = {}
    for run in runs(view.unwatched(), **place):
        sweep.setdefault(run.rate, {})[run.seed] = run.loss
    return bracketed(sweep, text)


def _optima(view: View) -> list[tuple[dict[str, str], LearningRateOptimum]]:
    """Return the optimum of every sweep of three rates or more, in the order of the axes."""
    sweeps: dict[tuple[str, ...], list[Row]] = {}
    axes = ("size", "context", "model", "budget")
    for run in runs(view):
        sweeps.setdefault(tuple(run.place[axis] for axis in axes), []).append({"rate": run.rate, LOSS: run.loss})
    found = []
    for values, rows in sweeps.items():
        rates, losses = _means(rows)
        if len(rates) >= FEWEST_RATES:
            found.append((dict(zip(axes, values, strict=True)), optimal_learning_rate(rates, losses)))
    return found


def _means(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Return the rates, ascending, and the mean loss over seeds at each."""
    by_rate: dict[float, list[float]] = {}
    for row in rows:
        by_rate.setdefault(row["rate"], []).append(row[LOSS])
    rates = sorted(by_rate)
    return rates, [sum(by_rate[rate]) / len(by_rate[rate]) for rate in rates]
