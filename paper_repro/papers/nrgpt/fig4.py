"""NRGPT, figure 4: losses against parameters, the best of each size and the spread around it.

Configurations are chosen by the best validation loss, and judged by the test loss of the same weights."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from paper_repro.tables import claims, figure, plots, stats
from paper_repro.tables.view import View

BEST, TEST = "best_val_loss", "best_test_loss"
PANELS = {TEST: "test loss", "train_loss": "training loss at the end"}
NRGPT = ("ff1", "ff2w")
Mixture = list[tuple[float, claims.Place]]
"""Places with weights whose sum is one."""


class Figure4(figure.Figure):
    """Runs as faint dots, the better half of each size; a line through the best configuration of each size."""

    size = (9.0, 3.6)
    marks = (
        "Faint dots: the better half of each size's runs; lines: means over seeds of the configuration with the lowest "
        "validation loss at each size."
    )
    metric = TEST
    panels = slice(1)

    def rows(self) -> list[figure.Row]:
        rows: list[figure.Row] = []
        for metric in PANELS:
            for model in self.artifact.axes["model"].values:
                for parameters, places in _sizes(self.view, model).items():
                    members = [(place, self.view.samples(metric, place)) for place in places]
                    losses = sorted(value for _, found in members for value in found.values())
                    middle = losses[(len(losses) - 1) // 2]
                    for place, found in members:
                        for seed, value in sorted(found.items()):
                            rows.append(_row(metric, "run", place, parameters, seed, value, value <= middle))
                    best = _lowest(self.view, places)
                    mean = stats.mean(list(self.view.samples(metric, best).values()))
                    rows.append(_row(metric, "best", best, parameters, "mean", mean, True))
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
    """Return the ratio of NRGPT's lower envelope to RGPT-parallel's, at each size within both ranges.

    The better variant of NRGPT at a size is the one with the lower validation loss.
    """
    baseline, *own = (_envelope(view.unwatched(), model) for model in ("rgpt_parallel", *NRGPT))
    pairs: dict[str, tuple[Mixture, Mixture]] = {}
    for parameters in sorted({size for curve in (baseline, *own) for size in curve}):
        left = [found for curve in own if (found := _between(curve, parameters))]
        if left and (right := _between(baseline, parameters)):
            best = min(left, key=lambda mixture: _validated(view.unwatched(), mixture))
            pairs[f"{parameters:,.0f} parameters"] = best, right
    to = f"test loss of {view.label('model', 'rgpt_parallel')} with as many parameters"
    items = {label: _items(view, *sides) for label, sides in pairs.items()}
    named = claims.RATIO, "test loss of NRGPT", to
    return claims.over_items(*named, items, "", logs=True) if items else claims.nothing("not run")


def estimate_shakespeare_no_overfit(view: View) -> claims.Estimate:
    """Return NRGPT's gap between validation and training loss at the end less GPT's, at the largest width."""
    width, gaps = [dict(key)["width"] for key in view.points][-1], {}
    for model in ("gpt", *NRGPT):
        places = _finished(view.unwatched(), model=model, width=width)
        if not places:
            return claims.nothing("not run")
        place = _lowest(view.unwatched(), places)
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


def _finished(view: View, **fixed: str) -> list[claims.Place]:
    """Return the places with those axis values at which some run is finished."""
    return [place for place in view.places(**fixed) if view.samples(BEST, place)]


def _sizes(view: View, model: str) -> dict[float, list[claims.Place]]:
    sizes: dict[float, list[claims.Place]] = {}
    for place in _finished(view, model=model):
        if (parameters := view.counted("parameters", place)) is not None:
            sizes.setdefault(parameters, []).append(place)
    return dict(sorted(sizes.items()))


def _means(view: View, places: Sequence[claims.Place]) -> list[float]:
    """Return the mean best validation loss at each place, over the seeds that all of them have."""
    found = [view.samples(BEST, place) for place in places]
    seeds = set.intersection(*map(set, found))
    return [stats.mean([own[seed] for seed in seeds or own]) for own in found]


def _lowest(view: View, places: Sequence[claims.Place]) -> claims.Place:
    means = _means(view, places)
    return places[means.index(min(means))]


def _envelope(view: View, model: str) -> dict[float, claims.Place]:
    """Map parameters to the configuration that is best there."""
    return {parameters: _lowest(view, places) for parameters, places in _sizes(view, model).items()}


def _between(curve: Mapping[float, claims.Place], parameters: float) -> Mixture:
    """Return the places whose mixture is the straight line in the logarithm of the parameters, none beyond it."""
    if parameters in curve:
        return [(1.0, curve[parameters])]
    for low, high in pairwise(curve):
        if low < parameters < high:
            share = math.log(parameters / low) / math.log(high / low)
            return [(1 - share, curve[low]), (share, curve[high])]
    return []


def _validated(view: View, mixture: Mixture) -> float:
    """Return the mean over seeds of a mixture's best validation loss."""
    return sum(weight * stats.mean(list(view.samples(BEST, place).values())) for weight, place in mixture)


def _items(view: View, *mixtures: Mixture) -> dict[int, list[float]]:
    """Return by seed what single test batches add to the logarithm of the ratio of two mixtures' test losses."""
    sides = []
    for mixture in mixtures:
        found = [
            (view.samples(TEST, place), claims.item_losses(view, claims.TEST_ITEMS, place)) for _, place in mixture
        ]
        seeds = set.intersection(*(tested.keys() & losses.keys() for tested, losses in found))
        pairs = [(weight, losses) for (weight, _), (_, losses) in zip(mixture, found, strict=True)]
        scaled = {seed: [[weight * loss for loss in losses[seed]] for weight, losses in pairs] for seed in seeds}
        sides.append({seed: [sum(one) for one in zip(*own, strict=True)] for seed, own in scaled.items()})
    return {seed: claims.relative(sides[0][seed], sides[1][seed]) for seed in sides[0].keys() & sides[1]}


def _spread(view: View, model: str, width: str) -> stats.Samples:
    """Return the highest less the lowest, seed by seed, of the two places whose means are extreme."""
    places = _finished(view.unwatched(), model=model, width=width)
    if len(places) < 2:
        return {}
    means = _means(view.unwatched(), places)
    low, high = (view.samples(BEST, places[means.index(end)]) for end in (min(means), max(means)))
    return {seed: high[seed] - low[seed] for seed in low.keys() & high.keys()}
