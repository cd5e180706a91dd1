"""NRGPT, figure 4: losses against parameters, the best of each size and the spread around it."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from paper_repro.tables import claims, figure, plots, stats
from paper_repro.tables.view import View

BEST = "best_val_loss"
PANELS = {BEST: "best validation loss", "train_loss": "training loss at the end"}
NRGPT = ("ff1", "ff2w")
Members = Sequence[tuple[claims.Place, stats.Samples]]
"""Places that are compared, each with its samples."""


class Figure4(figure.Figure):
    """Runs as faint dots, the better half of each size; a line through the best mean over seeds of each size."""

    size = (9.0, 3.6)
    marks = "Faint dots: the better half of each size's runs; lines: the best mean over seeds of each size."
    metric = BEST
    panels = slice(1)

    def rows(self) -> list[figure.Row]:
        rows: list[figure.Row] = []
        for metric in PANELS:
            for model in self.artifact.axes["model"].values:
                for parameters, members in _sizes(self.view, metric, model).items():
                    losses = sorted(value for _, found in members for value in found.values())
                    middle = losses[(len(losses) - 1) // 2]
                    for place, found in members:
                        for seed, value in sorted(found.items()):
                            rows.append(_row(metric, "run", place, parameters, seed, value, value <= middle))
                    place, found = _lowest(members)
                    rows.append(_row(metric, "best", place, parameters, "mean", _mean(found), True))
        return rows

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        panels = canvas.subplots(1, len(PANELS), sharex=True)
        for axes, (metric, title) in zip(panels, PANELS.items(), strict=True):
            for model, spec in self.artifact.axes["model"].values.items():
                own = [row for row in rows if (row["metric"], row["model"], row["drawn"]) == (metric, model, 1)]
                points = {
                    kind: sorted((row["parameters"], row["value"]) for row in own if row["kind"] == kind)
                    for kind in ("run", "best")
                }
                color = self.color(model)
                if points["run"]:
                    axes.scatter(*zip(*points["run"], strict=True), s=8, color=color, alpha=0.35, linewidths=0)
                if points["best"]:
                    best = zip(*points["best"], strict=True)
                    axes.plot(*best, color=color, marker="o", markersize=3, linewidth=1.2, label=spec.label)
            axes.set(xscale="log", xlabel="parameters", ylabel=f"{title} (nats per character)")
            plots.log_ticks(axes.xaxis)


def estimate_shakespeare_parity(view: View) -> claims.Estimate:
    """Return the ratio of NRGPT's lower envelope to RGPT-parallel's, at each size within both ranges."""
    baseline, *own = (_envelope(view, model) for model in ("rgpt_parallel", *NRGPT))
    parts = {}
    for parameters in sorted({size for curve in (baseline, *own) for size in curve}):
        right = _interpolated(baseline, parameters)
        left = [found for curve in own if (found := _interpolated(curve, parameters))]
        if left and right:
            parts[f"{parameters:,.0f} parameters"] = min(left, key=_mean), right
    return claims.ratio(
        "loss of NRGPT", f"loss of {view.label('model', 'rgpt_parallel')} with as many parameters", parts
    )


def estimate_shakespeare_no_overfit(view: View) -> claims.Estimate:
    """Return NRGPT's gap between validation and training loss at the end less GPT's, at the largest width."""
    width, gaps = [dict(key)["width"] for key in view.points][-1], {}
    for model in ("gpt", *NRGPT):
        members = _members(view.unwatched(), BEST, model=model, width=width)
        if not members:
            return claims.nothing("not run")
        place, _ = _lowest(members)
        train, val = view.samples("train_loss", place), view.samples("val_loss", place)
        gaps[model] = {seed: val[seed] - train[seed] for seed in val.keys() & train.keys()}
    parts = {view.label("model", model): (gaps[model], gaps["gpt"]) for model in NRGPT}
    return claims.difference("gap of validation and training loss of NRGPT", "GPT", parts)


def estimate_hyperparameter_sensitivity(view: View) -> claims.Estimate:
    """Return NRGPT's spread over heads, steps and settings less GPT's, at every width of the scale."""
    parts = {}
    for width, spec in view.artifact.axes["width"].values.items():
        spreads = {model: _spread(view, model, width) for model in ("gpt", *NRGPT)}
        for model in NRGPT:
            if spreads["gpt"] and spreads[model]:
                parts[f"{view.label('model', model)}, width {spec.label}"] = spreads[model], spreads["gpt"]
    return claims.difference("highest less lowest loss over settings of NRGPT", "GPT", parts)


def _row(
    metric: str, kind: str, place: claims.Place, parameters: float, seed: int | str, value: float, drawn: bool
) -> figure.Row:
    run = {"parameters": int(parameters), "seed": seed, "value": round(value, 8), "drawn": int(drawn)}
    return {"metric": metric, "kind": kind, **place, **run}


def _members(view: View, metric: str, **fixed: str) -> list[tuple[claims.Place, stats.Samples]]:
    """Return the places with those axis values at which some run is finished, with the metric there."""
    return [(place, found) for place in view.places(**fixed) if (found := view.samples(metric, place))]


def _sizes(view: View, metric: str, model: str) -> dict[float, list[tuple[claims.Place, stats.Samples]]]:
    sizes: dict[float, list[tuple[claims.Place, stats.Samples]]] = {}
    for place, found in _members(view, metric, model=model):
        if (parameters := view.counted("parameters", place)) is not None:
            sizes.setdefault(parameters, []).append((place, found))
    return dict(sorted(sizes.items()))


def _mean(found: stats.Samples) -> float:
    return stats.mean(list(found.values()))


def _lowest(members: Members) -> tuple[claims.Place, stats.Samples]:
    return min(members, key=lambda member: _mean(member[1]))


def _envelope(view: View, model: str) -> dict[float, stats.Samples]:
    """Map parameters to the losses of the configuration that is best there."""
    sizes = _sizes(view.unwatched(), BEST, model)
    return {parameters: view.samples(BEST, _lowest(members)[0]) for parameters, members in sizes.items()}


def _interpolated(curve: Mapping[float, stats.Samples], parameters: float) -> stats.Samples:
    """Interpolate linearly in the logarithm of the parameters, seed by seed; empty outside the curve's range."""
    if parameters in curve:
        return curve[parameters]
    for low, high in pairwise(curve):
        if low < parameters < high:
            share = math.log(parameters / low) / math.log(high / low)
            left, right = curve[low], curve[high]
            return {seed: (1 - share) * left[seed] + share * right[seed] for seed in left.keys() & right.keys()}
    return {}


def _spread(view: View, model: str, width: str) -> stats.Samples:
    """Return the highest less the lowest, seed by seed, of the two places whose means are extreme."""
    members = _members(view.unwatched(), BEST, model=model, width=width)
    if len(members) < 2:
        return {}
    extremes = _lowest(members), max(members, key=lambda member: _mean(member[1]))
    low, high = (view.samples(BEST, place) for place, _ in extremes)
    return {seed: high[seed] - low[seed] for seed in low.keys() & high.keys()}
