"""NRGPT, figure 4: losses against parameters, the best of each size and the spread around it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, Place, combine, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

BEST = "best_val_loss"
PANELS = {BEST: "best validation loss", "train_loss": "training loss at the end"}
NRGPT = ("ff1", "ff2w")
MARGIN = 0.03
"""Relative; what "parity" is taken to allow, the paper names no number."""

Samples = Mapping[int, float]
"""A metric by seed."""
Members = Sequence[tuple[Place, Samples]]
"""Places that are compared, each with its samples."""


class Figure4(figures.Figure):
    """Runs as faint dots, the better half of each size; a line through the best mean over seeds of each size."""

    size = (9.0, 3.6)
    marks = "Faint dots: the better half of each size's runs; lines: the best mean over seeds of each size."
    metric = BEST
    panels = slice(1)

    def rows(self) -> list[Row]:
        """Return every run in both panels, then the line's points; ``drawn`` is 0 for the worse half of a
        size's runs.
        """
        rows: list[Row] = []
        for metric in PANELS:
            sizes: dict[tuple[str, float], list[tuple[Place, Samples]]] = {}
            for place, found in _places(self.view, metric):
                parameters = self.view.counted("parameters", place)
                if parameters is not None:
                    sizes.setdefault((place["model"], parameters), []).append((place, found))
            for (_, parameters), members in sizes.items():
                losses = sorted(value for _, found in members for value in found.values())
                middle = losses[(len(losses) - 1) // 2]
                for place, found in members:
                    for seed, value in sorted(found.items()):
                        rows.append(_row(metric, "run", place, parameters, seed, value, value <= middle))
                place, found = _lowest(members)
                rows.append(_row(metric, "best", place, parameters, "mean", _mean(found), True))
        return rows

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        panels = canvas.subplots(1, len(PANELS), sharex=True)
        for axes, (metric, title) in zip(panels, PANELS.items(), strict=True):
            for model, spec in self.artifact.axes["model"].values.items():
                own = [row for row in rows if (row["metric"], row["model"], row["drawn"]) == (metric, model, 1)]
                _curve(axes, own, palette.model(self.artifact.id, model), spec.label)
            axes.set(xscale="log", xlabel="parameters", ylabel=f"{title} (nats per character)")
            figures.log_ticks(axes.xaxis)


def _row(metric: str, kind: str, place: Place, parameters: float, seed: int | str, value: float, drawn: bool) -> Row:
    run = {"parameters": int(parameters), "seed": seed, "value": round(value, 8), "drawn": int(drawn)}
    return {"metric": metric, "kind": kind, **place, **run}


def _curve(axes: "Axes", rows: Sequence[Row], color: str, label: str) -> None:
    runs = [row for row in rows if row["kind"] == "run"]
    best = sorted((row["parameters"], row["value"]) for row in rows if row["kind"] == "best")
    if runs:
        axes.scatter(
            [row["parameters"] for row in runs],
            [row["value"] for row in runs],
            s=8,
            color=color,
            alpha=0.35,
            linewidths=0,
        )
    if best:
        axes.plot(*zip(*best, strict=True), color=color, marker="o", markersize=3, linewidth=1.2, label=label)


def judge_shakespeare_parity(view: View) -> Judgement:
    """Return the log ratio of NRGPT's lower envelope and RGPT-parallel's, over seeds, at each size within
    both ranges.
    """
    curves = {model: _envelope(view, model) for model in ("rgpt_parallel", *NRGPT)}
    if not curves["rgpt_parallel"] or not any(curves[model] for model in NRGPT):
        return Judgement(UNDECIDED, "not run")
    parts = []
    for parameters in sorted({size for curve in curves.values() for size in curve}):
        baseline = _interpolate(curves["rgpt_parallel"], parameters)
        own = [found for model in NRGPT if (found := _interpolate(curves[model], parameters))]
        if baseline and own:
            label = f"NRGPT over RGPT-parallel, {parameters:,.0f} parameters"
            parts.append((label, _at_most(min(own, key=_mean), baseline, math.log1p(MARGIN), relative=True)))
    if not parts:
        return Judgement(UNDECIDED, "the two have no range of parameters in common")
    return combine(parts, FAILS, HOLDS)


def judge_shakespeare_no_overfit(view: View) -> Judgement:
    """Judge whether val_loss - train_loss at the end is smaller for NRGPT than for GPT, at the largest width of the
    scale.
    """
    width = [dict(key)["width"] for key in view.points][-1]
    gaps = {}
    for model in ("gpt", *NRGPT):
        members = list(_places(view.unwatched(), BEST, model=model, width=width))
        if not members:
            return Judgement(UNDECIDED, "not run")
        place, _ = _lowest(members)
        train, val = view.samples("train_loss", place), view.samples("val_loss", place)
        gaps[model] = {seed: val[seed] - train[seed] for seed in val.keys() & train.keys()}
    labels = view.artifact.axes["model"].values
    parts = [(f"{labels[model].label}'s gap less GPT's", _at_most(gaps[model], gaps["gpt"], 0.0)) for model in NRGPT]
    return combine(parts, FAILS, HOLDS)


def judge_hyperparameter_sensitivity(view: View) -> Judgement:
    """Return the spread over heads, steps and settings, NRGPT's above GPT's, at every width of the scale."""
    parts, plain = [], view.unwatched()
    for width, spec in view.artifact.axes["width"].values.items():
        found = {model: list(_places(plain, BEST, model=model, width=width)) for model in ("gpt", *NRGPT)}
        for model in NRGPT:
            if len(found["gpt"]) > 1 and len(found[model]) > 1:
                label = f"GPT's spread less {view.artifact.axes['model'].values[model].label}'s, width {spec.label}"
                judge = partial(_spreads_more, members=found[model], baseline=found["gpt"])
                parts.append((label, guarded(view, judge)))
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "not run")


def _spreads_more(view: View, members: Members, baseline: Members) -> Judgement:
    return _at_most(_spread(view, baseline), _spread(view, members), 0.0)


def _places(view: View, metric: str, **fixed: str) -> Iterator[tuple[Place, Samples]]:
    """Yield the places of the scale with those axis values at which some run is finished, with the metric there."""
    for key in view.points:
        if fixed.items() <= dict(key).items() and (found := view.samples(metric, dict(key))):
            yield dict(key), found


def _mean(found: Samples) -> float:
    return intervals.mean(list(found.values()))


def _lowest(members: Members) -> tuple[Place, Samples]:
    return min(members, key=lambda member: _mean(member[1]))


def _envelope(view: View, model: str) -> dict[float, Samples]:
    """Map parameters to the losses of the configuration that is best there."""
    sizes: dict[float, list[tuple[Place, Samples]]] = {}
    for place, found in _places(view.unwatched(), BEST, model=model):
        parameters = view.counted("parameters", place)
        if parameters is not None:
            sizes.setdefault(parameters, []).append((place, found))
    lowest = {parameters: _lowest(members)[0] for parameters, members in sorted(sizes.items())}
    return {parameters: view.samples(BEST, place) for parameters, place in lowest.items()}


def _interpolate(curve: Mapping[float, Samples], parameters: float) -> Samples:
    """Interpolate linearly in the logarithm of the parameters, seed by seed; empty outside the curve's range."""
    if parameters in curve:
        return curve[parameters]
    for low, high in pairwise(curve):
        if low < parameters < high:
            share = math.log(parameters / low) / math.log(high / low)
            left, right = curve[low], curve[high]
            return {seed: (1 - share) * left[seed] + share * right[seed] for seed in left.keys() & right.keys()}
    return {}


def _spread(view: View, members: Members) -> Samples:
    """Return the highest less the lowest, seed by seed, of the two places whose means are extreme: both are judged, and
    those between them only looked at to find them.
    """
    extremes = _lowest(members), max(members, key=lambda member: _mean(member[1]))
    low, high = (view.samples(BEST, place) for place, _ in extremes)
    return {seed: high[seed] - low[seed] for seed in low.keys() & high.keys()}


def _at_most(left: Samples, right: Samples, threshold: float, relative: bool = False) -> Judgement:
    """Return whether left - right, or the logarithm of their ratio, lies below a threshold with its whole interval."""
    if not left or not right:
        return Judgement(UNDECIDED, "no seed in common")
    base = intervals.mean(list(right.values()))
    if relative:
        left, right = ({seed: math.log(value) for seed, value in side.items()} for side in (left, right))
    found = intervals.compare(left, right)
    numbers = [found.mean, found.low, found.high]
    if relative:
        text = "ratio {:.3f} [{:.3f}, {:.3f}]".format(*map(math.exp, numbers))
    else:
        text = "difference {:.4f} [{:.4f}, {:.4f}]".format(*numbers)
    text += f", {found.count} {'pairs' if found.paired else 'seeds, unpaired'}"
    return tested(found, text, high=threshold, relative=relative, base=base)
