"""Sweeps over learning rates, and the best rate of each by an Akima interpolant over log2 rate (figures 3a and 5)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paper_repro.cells.tasks import DIVERGED
from paper_repro.metrics.fits import LearningRateOptimum, optimal_learning_rate
from paper_repro.papers.cem.text import PERPLEXITY, PerplexityFigure
from paper_repro.tables import claims, plots, stats
from paper_repro.tables.figure import Axes, Canvas, Row
from paper_repro.tables.view import View

MODELS = ("full", "llama")
Sweep = dict[float, dict[int, float]]
"""Perplexity by rate and seed; infinite for a run that diverged."""


class RatesFigure(PerplexityFigure):
    """Perplexity against the initial rate with its interpolant, and a star at its lowest point."""

    marks = "Faint dots: seeds; marks: means over seeds; lines: Akima interpolants, a star at each lowest point."
    size = (5.5, 3.4)

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for size in self.view.chosen("size"):
            for model in self.view.chosen("model"):
                own = self.view.places(size=size, model=model)
                parameters = next((int(n) for place in own if (n := self.view.counted("parameters", place))), 0)
                head: Row = {"size": size, "model": model, "parameters": parameters}
                runs = sweep(self.view, size, model)
                for rate, seed, value in sorted((r, s, v) for r, values in runs.items() for s, v in values.items()):
                    shown, note = (round(value, 8), "") if math.isfinite(value) else ("", DIVERGED)
                    found.append({"kind": "run", **head, "rate": rate, "seed": seed, PERPLEXITY: shown, "note": note})
                best = optimum(runs)
                end: Row = {"rate": "", "seed": "mean", PERPLEXITY: "", "note": best}
                if isinstance(best, LearningRateOptimum):
                    end |= {"rate": round(best.learning_rate, 10), PERPLEXITY: round(best.value, 8)}
                    end["note"] = "at the edge of the grid" if best.at_edge else ""
                found.append({"kind": "optimum", **head, **end})
        return found

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        for size, marker, end in self.sizes():
            for model in self.view.chosen("model"):
                own = [row for row in rows if (row["size"], row["model"]) == (size, model)]
                self._curve(axes, own, marker, f"{self.view.label('model', model)}{end}")
        rates = sorted({row["rate"] for row in rows if row["kind"] == "run"})
        axes.set(xlabel="initial learning rate", ylabel=f"{self.split} perplexity", xscale="log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])

    def _curve(self, axes: Axes, rows: Sequence[Row], marker: str, label: str) -> None:
        runs = [row for row in rows if row["kind"] == "run" and row[PERPLEXITY] != ""]
        lost = {row["rate"] for row in rows if row["note"] == DIVERGED}
        if not runs:
            return
        best, color = rows[-1], self.color(rows[0]["model"])
        points = [(row["rate"], row[PERPLEXITY]) for row in runs if row["rate"] not in lost]
        plots.seeds_and_mean(axes, points, color, None, "", marker)
        axes.plot([], [], "-", color=color, marker=marker, markersize=4, linewidth=1.2, label=label)
        if best["rate"] != "":
            heights = {rate: stats.mean([v for r, v in points if r == rate]) for rate in sorted({r for r, _ in points})}
            axes.plot(*_interpolant(heights), "-", color=color, linewidth=1.2)
            star: Any = {"markersize": 12, "markeredgecolor": plots.GROUND, "markeredgewidth": 0.8, "zorder": 5}
            axes.plot([best["rate"]], [best[PERPLEXITY]], "*", color=color, **star)


def sweep(view: View, size: str, model: str) -> Sweep:
    """Return the finished and the diverged runs of a model; rates without either are left out."""
    return {
        float(place["lr"]): values
        for place in view.places(size=size, model=model)
        if (values := {**view.samples(PERPLEXITY, place), **dict.fromkeys(view.lost(None, place), math.inf)})
    }


def optimum(values: Sweep) -> LearningRateOptimum | str:
    """Find the optimum of the means over seeds, without rates at which a run diverged; or say why there is none."""
    try:
        return optimal_learning_rate(list(values), [stats.mean(list(found.values())) for found in values.values()])
    except ValueError as error:
        return str(error)


def optima(view: View, size: str, model: str) -> dict[int, LearningRateOptimum]:
    """Return the optimum of each seed that has all planned rates; the rate of the lowest mean is read to be judged."""
    found, places = sweep(view.unwatched(), size, model), view.places(size=size, model=model)
    means = {stats.mean(list(values.values())): rate for rate, values in found.items()}
    for place in places:
        if means and float(place["lr"]) == means[min(means)]:
            view.samples(PERPLEXITY, place)
    seeds = set.intersection(*(set(values) for values in found.values())) if len(found) == len(places) else set()
    best = {seed: optimum({rate: {seed: values[seed]} for rate, values in found.items()}) for seed in sorted(seeds)}
    return {seed: one for seed, one in best.items() if isinstance(one, LearningRateOptimum)}


def estimate_higher_rate(view: View) -> claims.Estimate:
    """Return by how many doublings full CEM's best rate is above Llama's, of each seed."""
    labels = [view.label("model", model) for model in MODELS]
    parts, items = {}, {}
    for size in view.chosen("size"):
        both = [optima(view, size, model) for model in MODELS]
        for label, found in zip(labels, both, strict=True):
            if any(one.at_edge for one in found.values()):
                return claims.nothing(f"the best rate of {label} is at the edge of the grid")
        left, right = ({seed: math.log2(one.learning_rate) for seed, one in found.items()} for found in both)
        parts[view.label("size", size)] = left, right
        swept = [place for model in MODELS for place in view.places(size=size, model=model)]
        names = {(place["model"], float(place["lr"])): place for place in swept}
        losses = claims.losses_by_seed(view.unwatched(), names)
        items[view.label("size", size)] = {seed: stats.jackknife(_doublings, own) for seed, own in losses.items()}
    of, to = (f"best rate of {label}" for label in labels)
    return claims.difference(of, to, parts, "doublings", items)


def _doublings(losses: Mapping[tuple[str, float], float]) -> float:
    """Return by how many doublings the best rate of full CEM is above Llama's, from the losses of one seed."""
    sweeps = ({rate: math.exp(loss) for (name, rate), loss in losses.items() if name == model} for model in MODELS)
    full, llama = (optimal_learning_rate(list(own), list(own.values())).learning_rate for own in sweeps)
    return math.log2(full / llama)


def _interpolant(heights: dict[float, float]) -> tuple[list[float], list[float]]:
    import numpy as np
    from scipy.interpolate import Akima1DInterpolator

    knots = np.log2(list(heights))
    exponents = np.linspace(knots[0], knots[-1], 200)
    return (2.0**exponents).tolist(), Akima1DInterpolator(knots, list(heights.values()))(exponents).tolist()
