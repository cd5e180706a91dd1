"""Sweeps over learning rates, and the best rate of each by an Akima interpolant over log2 rate (figures 3a, 5)."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import intervals, palette, tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.intervals import Interval
from paper_repro.artifacts.views import View
from paper_repro.cells.tasks import DIVERGED
from paper_repro.metrics.learning_rate import LearningRateOptimum, optimal_learning_rate
from paper_repro.papers.cem.text import (
    MARKERS,
    PERPLEXITY,
    PerplexityFigure,
    chosen,
    count_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

AT_OR_BELOW = 0.01
"""Relative; what "at or below" allows: ours, half of what figures 2c and 2d count as little effect."""

_LINES = ("-", "--", ":")
"""Lines of the settings that share a colour, in their order; the points of all but the first are hollow."""

Sweep = dict[float, dict[int, float]]
"""Perplexity by rate and seed; infinite for a run that diverged."""


class RatesFigure(PerplexityFigure):
    """Perplexity against the initial rate with its interpolant, and a star at its lowest point."""

    size = (6.0, 4.0)
    marks = "Faint dots: seeds; discs: means over seeds; lines: Akima interpolants, their lowest points starred."

    def rows(self) -> list[Row]:
        """Return the runs, those that diverged without a perplexity; then for each sweep its optimum, or why it has
        none.
        """
        found: list[Row] = []
        for size, model in _sweeps(self.view):
            place = {"size": size, "model": model, "parameters": _parameters(self.view, size, model)}
            for rate, values in sorted(sweep(self.view, size, model).items()):
                for seed, value in sorted(values.items()):
                    shown: object = round(value, 8) if math.isfinite(value) else ""
                    note = "" if math.isfinite(value) else DIVERGED
                    found.append({"kind": "run", **place, "rate": rate, "seed": seed, PERPLEXITY: shown, "note": note})
            best = optimum(sweep(self.view, size, model))
            numbers: dict[str, object] = {"rate": "", "seed": "mean", PERPLEXITY: "", "note": str(best)}
            if isinstance(best, LearningRateOptimum):
                numbers |= {"rate": round(best.learning_rate, 10), PERPLEXITY: round(best.value, 8)}
                numbers["note"] = "at the edge of the grid" if best.at_edge else ""
            found.append({"kind": "optimum", **place, **numbers})
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        sizes = chosen(self.view, "size")
        for size, model in _sweeps(self.view):
            own = [row for row in rows if (row["size"], row["model"]) == (size, model)]
            if own:
                self._curve(axes, own, MARKERS[sizes.index(size)])
        axes.set(xlabel="initial learning rate", ylabel=f"{self.split} perplexity", xscale="log")
        axes.set_xticks(sorted({row["rate"] for row in rows if row["kind"] == "run"}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()

    def _curve(self, axes: "Axes", rows: Sequence[Row], marker: str) -> None:
        color = self.color(rows[0]["model"])
        alike = [model for model in chosen(self.view, "model") if self.color(model) == color]
        line = _LINES[alike.index(rows[0]["model"])]
        runs = [row for row in rows if row["kind"] == "run" and row[PERPLEXITY] != ""]
        axes.scatter([row["rate"] for row in runs], [row[PERPLEXITY] for row in runs], s=8, color=color, alpha=0.35)
        (best,) = (row for row in rows if row["kind"] == "optimum")
        label = f"{self.label('model', best['model'])}, {self.label('size', best['size'])}"
        label += f" ({count_text(best['parameters'])})" + (f": {best['note']}" if best["note"] else "")
        values: Sweep = {}
        for row in (row for row in rows if row["kind"] == "run"):
            value = row[PERPLEXITY] if row[PERPLEXITY] != "" else math.inf
            values.setdefault(row["rate"], {})[row["seed"]] = value
        points = [(rate, value) for rate, value in _means(values).items() if math.isfinite(value)]
        rates, heights = [rate for rate, _ in points], [value for _, value in points]
        face = color if line == _LINES[0] else palette.GROUND
        look: Any = {"marker": marker, "color": color, "markersize": 4, "markerfacecolor": face, "linewidth": 1}
        axes.plot(rates, heights, linestyle="none", **look)
        axes.plot([], [], line, label=label, **look)  # the legend has mark and line, which are of two artists
        if best["rate"] != "":
            axes.plot(*_interpolant(rates, heights), line, color=color, linewidth=1)
            axes.plot(
                [best["rate"]], [best[PERPLEXITY]], "*", color=color, markersize=11, markeredgecolor=palette.GROUND
            )


class RatesTable(tables.Table):
    def remarks(self) -> list[str]:
        """Say where each sweep is lowest, or why no lowest point can be given."""
        found = []
        for size, model in _sweeps(self.view):
            best = optimum(sweep(self.view, size, model))
            word = str(best) if isinstance(best, LearningRateOptimum) else f"no optimum: {best}"
            found.append(f"{_label(self.view, size, model)}: {word}.")
        return found


def sweep(view: View, size: str, model: str) -> Sweep:
    """Return the finished and the diverged runs of a model; rates without either are left out."""
    found: Sweep = {}
    for key, point in view.points.items():
        place = dict(key)
        if (place["size"], place["model"]) != (size, model):
            continue
        values = view.samples(PERPLEXITY, place)
        values |= {seed: math.inf for seed, record in view.judged(point).items() if record.status == DIVERGED}
        if values:
            found[view.counted("lr", place) or 0.0] = values
    return found


def optimum(values: Sweep) -> LearningRateOptimum | str:
    """Find the optimum of the means over seeds, without rates at which a run diverged; or say why there is none."""
    means = _means(values)
    try:
        return optimal_learning_rate(list(means), list(means.values()))
    except ValueError as error:
        return str(error)


def judge_higher_rate(view: View) -> Judgement:
    """Judge whether log2 of CEM's best rate over Llama's, seed by seed, is above 0 at every size."""
    return _judge_sizes(view, "llama", "full", _higher_rate)


def judge_full_cem_better(view: View) -> Judgement:
    """Judge whether CEM's lowest perplexity is at most ``AT_OR_BELOW`` above Llama's lowest, seed by seed, at every
    size.
    """
    return judge_best(view, "llama", "full", AT_OR_BELOW)


def judge_best(view: View, baseline: str, model: str, margin: float = 0.0) -> Judgement:
    """Judge whether a model's lowest perplexity is below a baseline's, seed by seed, at every size.

    Args:
        view: of a sweep over rates.
        baseline: the value of the axis of models whose lowest perplexity is the measure.
        model: the value that is judged.
        margin: how far above the baseline the model may be, as a share.
    """
    return _judge_sizes(view, baseline, model, partial(_lower, limit=math.log1p(margin)))


Optima = Mapping[int, LearningRateOptimum]
"""By seed."""
Judge = Callable[[Optima, Optima, str], Judgement]
"""The difference is taken from the baseline's optima to the model's; the text is what to say of those at an edge."""


def _judge_sizes(view: View, baseline: str, model: str, judge: Judge) -> Judgement:
    parts = []
    for size in chosen(view, "size"):
        label = view.artifact.axes["size"].values[size].label
        both = [_by_seed(view, size, name) for name in (baseline, model)]
        common = sorted(both[0].keys() & both[1].keys())
        if len(common) < 2:
            reason = "one seed: not judged" if common else "no seed has every rate of both models"
            parts.append((label, Judgement(UNDECIDED, reason)))
        else:
            base, own = ({seed: found[seed] for seed in common} for found in both)
            labels = [view.artifact.axes["model"].values[name].label for name in (baseline, model)]
            parts.append((label, judge(base, own, _edges(dict(zip(labels, (base, own), strict=True))))))
    return combine(parts, FAILS, HOLDS)


def _higher_rate(llama: Optima, full: Optima, edges: str) -> Judgement:
    logs = [{seed: math.log2(best.learning_rate) for seed, best in found.items()} for found in (full, llama)]
    found = intervals.compare(*logs)
    text = f"{found.mean:+.2f} doublings [{found.low:+.2f}, {found.high:+.2f}], {found.count} pairs{edges}"
    # Beyond an edge the true optimum may lie farther out, up or down.
    up = any(best.edge == "highest" for best in full.values()) or any(best.edge == "lowest" for best in llama.values())
    down = any(best.edge == "lowest" for best in full.values()) or any(
        best.edge == "highest" for best in llama.values()
    )
    return _with_edges(found, up, down, text, low=0.0)


def _lower(baseline: Optima, model: Optima, edges: str, limit: float) -> Judgement:
    logs = [{seed: math.log(best.value) for seed, best in found.items()} for found in (model, baseline)]
    found = intervals.compare(*logs)
    numbers = [math.exp(number) for number in (found.mean, found.low, found.high)]
    text = "ratio {:.3f} [{:.3f}, {:.3f}]".format(*numbers) + f", {found.count} pairs{edges}"
    # A model whose best rate stands at an edge might be better beyond it.
    up, down = (any(best.at_edge for best in side.values()) for side in (baseline, model))
    return _with_edges(found, up, down, text, high=limit, relative=True)


def _with_edges(found: Interval, up: bool, down: bool, text: str, **wanted: Any) -> Judgement:
    """Judge by an interval of values of which some may in truth lie higher, or lower: a verdict stands if that could
    only strengthen it.
    """
    if up and down:
        return Judgement(UNDECIDED, text)
    return tested(found.opened(">" if up else "<" if down else "="), text, **wanted)


def _edges(optima: Mapping[str, Optima]) -> str:
    counts = {label: sum(best.at_edge for best in found.values()) for label, found in optima.items()}
    texts = [f"{name}'s best at the edge of the grid in {count}" for name, count in counts.items() if count]
    return "".join(f"; {text}" for text in texts)


def _by_seed(view: View, size: str, model: str) -> dict[int, LearningRateOptimum]:
    """Return the optimum of every seed that has all the rates of the plan; of these the best is judged."""
    values = sweep(view.unwatched(), size, model)
    _note_best(view, size, model)
    planned = [key for key in view.points if (dict(key)["size"], dict(key)["model"]) == (size, model)]
    found = {}
    for seed in sorted({seed for at_rate in values.values() for seed in at_rate}):
        own = {rate: {seed: at_rate[seed]} for rate, at_rate in values.items() if seed in at_rate}
        best = optimum(own)
        if len(own) == len(planned) and isinstance(best, LearningRateOptimum):
            found[seed] = best
    return found


def _note_best(view: View, size: str, model: str) -> None:
    """Read the rate with the lowest mean perplexity."""
    places = [dict(key) for key in view.points if (dict(key)["size"], dict(key)["model"]) == (size, model)]
    plain = view.unwatched()
    found = [place for place in places if plain.samples(PERPLEXITY, place)]
    if found:
        best = min(found, key=lambda place: intervals.mean(list(plain.samples(PERPLEXITY, place).values())))
        view.samples(PERPLEXITY, best)


def _sweeps(view: View) -> list[tuple[str, str]]:
    return list(dict.fromkeys((dict(key)["size"], dict(key)["model"]) for key in view.points))


def _means(values: Sweep) -> dict[float, float]:
    return {rate: intervals.mean(list(found.values())) for rate, found in sorted(values.items())}


def _interpolant(rates: Sequence[float], heights: Sequence[float]) -> tuple[list[float], list[float]]:
    import numpy as np
    from scipy.interpolate import Akima1DInterpolator

    exponents = np.linspace(math.log2(rates[0]), math.log2(rates[-1]), 200)
    curve = Akima1DInterpolator(np.log2(rates), heights)
    return [2.0 ** float(exponent) for exponent in exponents], [float(curve(exponent)) for exponent in exponents]


def _parameters(view: View, size: str, model: str) -> int:
    places = [dict(key) for key in view.points if (dict(key)["size"], dict(key)["model"]) == (size, model)]
    return next((int(found) for place in places if (found := view.counted("parameters", place))), 0)


def _label(view: View, size: str, model: str) -> str:
    return f"{view.artifact.axes['model'].values[model].label}, {view.artifact.axes['size'].values[size].label}"
