"""NRGPT, figure 3: ListOps accuracy and losses against parameters, and the size at which each model learns the task."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from paper_repro.metrics.fits import THRESHOLD, Transition, transition
from paper_repro.papers.nrgpt.closest import closest
from paper_repro.tables import claims, figure, plots, table
from paper_repro.tables.figure import Axes, BaselineLine, Canvas, PrintedNumber, Row, panel_lines
from paper_repro.tables.stats import Samples
from paper_repro.tables.view import View

ACCURACY = "accuracy"
LOSSES = {"train_loss": ("training loss", "--", ""), "val_loss": ("validation loss", "-", "o")}
MODELS = ("rgpt_parallel", "ff1", "ff2w")
CURVE_POINTS = 60


class Transitions(table.Table):
    """Rows are widths and models; the transitions stand in the summary."""

    def summary(self) -> dict[str, float]:
        fits = {model: _fit(self.view, model) for model in MODELS}
        return {f"transition_{model}": found.size for model, found in fits.items() if isinstance(found, Transition)}


class Figure3(figure.Figure):
    """Accuracy of every run, the logistic fit, its 80 % point and the printed one above; mean losses below."""

    size = (10.0, 5.4)
    marks = (
        "Above: a dot is a run, the curve a logistic fit to all of them. Below: faint dots are runs, lines means over "
        "seeds."
    )

    def baselines(self) -> list[BaselineLine]:
        return panel_lines(self.view, [(metric, None) for metric in (ACCURACY, "val_loss") for _ in MODELS])

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for place, parameters in _sizes(self.view):
            for metric in (ACCURACY, *LOSSES):
                for seed, value in sorted(self.view.samples(metric, place).items()):
                    rows.append(_row(metric, place["model"], parameters, seed, value))
        for model in MODELS:
            fitted = _fit(self.view, model)
            if isinstance(fitted, str):
                continue
            sizes = [row["parameters"] for row in rows if row["model"] == model]
            low, high = math.log10(min(sizes)), math.log10(max(sizes))
            for index in range(CURVE_POINTS):
                size = 10 ** (low + (high - low) * index / (CURVE_POINTS - 1))
                rows.append(_row("fit", model, size, "", fitted.accuracy(size)))
            rows.append(_row("transition", model, fitted.size, "", THRESHOLD))
        return rows

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        panels = canvas.subplots(2, len(MODELS), sharex=True, sharey="row")
        for (above, below), model in zip(panels.T, MODELS, strict=True):
            own = [row for row in rows if row["model"] == model]
            self._accuracies(above, own, self.color(model))
            for metric, (name, line, marker) in LOSSES.items():
                points = [(row["parameters"], row["value"]) for row in own if row["metric"] == metric]
                plots.seeds_and_mean(below, points, self.color(model), line=line, marker=marker)
                below.plot([], [], line, color=plots.RULE, marker=marker, markersize=3, label=name)
            above.set(title=self.view.label("model", model), ylim=(-0.02, 1.02))
            below.set(xlabel="parameters")
            if rows:
                below.set(xscale="log")
                plots.log_ticks(below.xaxis)
        panels[0][0].set_ylabel("accuracy")
        panels[1][0].set_ylabel("loss (nats per token)")

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        return [
            PrintedNumber(
                self.view.label("model", model), number, "parameters", panel, upright=True, color=self.color(model)
            )
            for panel, model in enumerate(MODELS)
            if (number := _printed_transition(self.view, model)) is not None
        ]

    def _accuracies(self, axes: Axes, rows: Sequence[Row], color: str) -> None:
        def points(metric: str) -> tuple[list[float], list[float]]:
            own = [row for row in rows if row["metric"] == metric]
            return [row["parameters"] for row in own], [row["value"] for row in own]

        axes.axhline(THRESHOLD, color=plots.RULE, linestyle="--", linewidth=0.8)
        answers = int(self.view.plan.cells[0].config["data"]["task"]["modulus"])
        axes.axhline(
            1 / answers, color=plots.RULE, linestyle=(0, (5, 5)), linewidth=0.8, label=f"1 of {answers} answers"
        )
        axes.scatter(*points(ACCURACY), s=12, color=color, alpha=0.6)
        axes.plot(*points("fit"), color=color, linewidth=1)
        star: Any = {"marker": "*", "linestyle": "none", "markeredgecolor": plots.INK, "markersize": 13}
        axes.plot(*points("transition"), color=color, **star)
        axes.plot([], [], color=plots.GROUND, label=f"learned here: the fit is {100 * THRESHOLD:g} % right", **star)


def estimate_listops_parity(view: View) -> claims.Estimate:
    sizes = _transitions(view)
    if isinstance(sizes, str):
        return claims.nothing(sizes)
    parts = {view.label("model", model): (sizes[model], sizes["rgpt_parallel"]) for model in ("ff1", "ff2w")}
    return claims.ratio("parameters at the transition of NRGPT", view.label("model", "rgpt_parallel"), parts)


def estimate_listops_order(view: View) -> claims.Estimate:
    sizes = _transitions(view)
    if isinstance(sizes, str):
        return claims.nothing(sizes)
    label = partial(view.label, "model")
    return closest(
        claims.ratio(f"parameters at the transition of {label(own)}", label(before), {"": (sizes[own], sizes[before])})
        for before, own in pairwise(sizes)
    )


def estimate_learns_the_answers(view: View) -> claims.Estimate:
    """Return the mean accuracy of each family's widest model, all of them beyond the printed transitions."""
    parts = {}
    for model in MODELS:
        place, size = _widest(view, model)
        if size <= (printed := _printed_transition(view, model) or 0.0):
            return claims.nothing(
                f"{view.label('model', model)} has {size:,.0f} parameters; its transition is at {printed:,.0f}"
            )
        parts[view.label("model", model)] = view.samples(ACCURACY, place)
    return claims.number("accuracy of the widest models", parts)


def _printed_transition(view: View, model: str) -> float | None:
    return view.artifact.summary[f"transition_{model}"].published


def _transitions(view: View) -> dict[str, Samples] | str:
    """Return the parameters at the transition by model and seed, or why there are none."""
    found: dict[str, Samples] = {}
    for model in MODELS:
        place, size = _widest(view, model)
        sizes = {}
        for seed in view.samples(ACCURACY, place) if size else {}:  # of all sizes the largest must beat its baseline
            fitted = _fit(view, model, seed)
            if isinstance(fitted, str):
                return f"{view.label('model', model)}, seed {seed}: {fitted}"
            sizes[seed] = fitted.size
        found[model] = sizes
    return found if all(found.values()) else "not run"


def _widest(view: View, model: str) -> tuple[claims.Place, float]:
    return max(_sizes(view, model), key=lambda size: size[1], default=({}, 0.0))


def _fit(view: View, model: str, seed: int | None = None) -> Transition | str:
    """Return the logistic curve through all runs of a model, or those of one seed; or why there is none."""
    runs = [
        (parameters, accuracy)
        for place, parameters in _sizes(view, model)
        for own, accuracy in view.unwatched().samples(ACCURACY, place).items()
        if seed in (None, own)
    ]
    if not runs:
        return ""
    try:
        return transition(*(list(column) for column in zip(*runs, strict=True)))
    except ValueError as error:
        return str(error)


def _sizes(view: View, model: str | None = None) -> Iterator[tuple[claims.Place, float]]:
    """Yield the places that were run, of one model or of all, each with its parameters."""
    for place in view.places() if model is None else view.places(model=model):
        if (parameters := view.counted("parameters", place)) is not None:
            yield place, parameters


def _row(metric: str, model: str, parameters: float, seed: int | str, value: float) -> Row:
    size = float(f"{parameters:.8g}")
    return {"metric": metric, "model": model, "parameters": size, "seed": seed, "value": round(value, 8)}
