"""NRGPT, figure 3: ListOps accuracy and losses against parameters, and where each model family learns the task."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, intervals, palette, tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.floor_marks import FloorLine, floor_lines
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.printed_numbers import PrintedNumber
from paper_repro.artifacts.shares import from_probit, probit
from paper_repro.artifacts.views import View
from paper_repro.metrics.transition import THRESHOLD, Transition, transition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

ACCURACY = "accuracy"
LOSSES = {"train_loss": "--", "val_loss": "-"}
LOSS_NAMES = {"train_loss": "training", "val_loss": "validation"}
LOSS_MARKS = {"train_loss": "", "val_loss": "o"}
MODELS = ("rgpt_parallel", "ff1", "ff2w")
PARITY = 1.5
"""Factor of parameters within which two transitions count as alike."""
CURVE_POINTS = 60


class Transitions(tables.Table):
    """Rows are widths and models; the transitions stand in the summary."""

    def summary(self) -> dict[str, float]:
        found = {}
        for model in MODELS:
            fitted, _ = _fit(self.view, model)
            if fitted is not None:
                found[f"transition_{model}"] = fitted.size
        return found

    def remarks(self) -> list[str]:
        labels = self.artifact.axes["model"].values
        remarks = [f"{labels[model].label}: {why}" for model in MODELS if (why := _fit(self.view, model)[1])]
        seconds = [record.seconds for point in self.view.points.values() for record in self.view.judged(point).values()]
        if total := math.fsum(seconds):
            rate = len(seconds) / total
            remarks.append(f"{len(seconds)} models in {total:,.0f} s of a worker: {rate:.3g} models per second.")
        return remarks


class Figure3(figures.Figure):
    """Accuracy of every run, the logistic fit, its 80 % point and the printed one above; mean losses below."""

    size = (10.0, 5.4)
    marks = (
        "Above: a dot is a run, the curve a logistic fit to them, the star where it passes 80 % of right answers (none "
        "where it does not). Below: means over seeds."
    )

    def floors(self) -> list[FloorLine]:
        """Return the floor of answers in the panels above, that of losses in those below."""
        found = []
        for panel in range(len(MODELS)):
            found += floor_lines(self.view, ACCURACY, None, panel)
            found += floor_lines(self.view, "val_loss", None, len(MODELS) + panel)
        return found

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for key in self.view.points:
            place = dict(key)
            parameters = self.view.counted("parameters", place)
            for metric in (ACCURACY, *LOSSES):
                for seed, value in sorted(self.view.samples(metric, place).items()):
                    rows.append(_row(metric, place["model"], parameters, seed, value))
        for model in MODELS:
            fitted, _ = _fit(self.view, model)
            if fitted is None:
                continue
            sizes = [row["parameters"] for row in rows if row["model"] == model]
            low, high = math.log10(min(sizes)), math.log10(max(sizes))
            for index in range(CURVE_POINTS):
                size = 10 ** (low + (high - low) * index / (CURVE_POINTS - 1))
                rows.append(_row("fit", model, size, "", fitted.accuracy(size)))
            rows.append(_row("transition", model, fitted.size, "", THRESHOLD))
        return rows

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        panels = canvas.subplots(2, len(MODELS), sharex=True, sharey="row")
        for column, model in enumerate(MODELS):
            own = [row for row in rows if row["model"] == model]
            color = palette.model(self.artifact.id, model)
            self._accuracies(panels[0][column], own, color)
            _losses(panels[1][column], own, color)
            panels[0][column].set(title=self.artifact.axes["model"].values[model].label, ylim=(-0.02, 1.02))
            panels[1][column].set(xlabel="parameters")
            if rows:
                panels[1][column].set(xscale="log")
                figures.log_ticks(panels[1][column].xaxis)
        panels[0][0].set_ylabel("accuracy")
        panels[1][0].set_ylabel("loss (nats per token)")
        for metric, line in LOSSES.items():
            label = f"{LOSS_NAMES[metric]} loss"
            panels[1][0].plot([], [], line, color=palette.RULE, marker=LOSS_MARKS[metric], markersize=3, label=label)

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        """Return the printed transitions, upright lines at their parameters."""
        found = []
        for panel, model in enumerate(MODELS):
            number = self.artifact.summary[f"transition_{model}"].published
            if number is not None:
                label, color = self.artifact.axes["model"].values[model].label, palette.model(self.artifact.id, model)
                found.append(PrintedNumber(label, number, "parameters", panel, upright=True, color=color))
        return found

    def _accuracies(self, axes: "Axes", rows: Sequence[Row], color: str) -> None:
        runs = [row for row in rows if row["metric"] == ACCURACY]
        fit = [row for row in rows if row["metric"] == "fit"]
        star = [row for row in rows if row["metric"] == "transition"]
        axes.axhline(THRESHOLD, color=palette.RULE, linestyle="--", linewidth=0.8, label=f"{100 * THRESHOLD:g} % right")
        if (answers := _answers(self.view)) is not None:
            label = f"chance, one of {answers} answers"
            axes.axhline(1 / answers, color=palette.RULE, linestyle=(0, (5, 5)), linewidth=0.8, label=label)
        axes.scatter([row["parameters"] for row in runs], [row["value"] for row in runs], s=12, color=color, alpha=0.6)
        axes.plot([row["parameters"] for row in fit], [row["value"] for row in fit], color=color, linewidth=1)
        places, heights = [row["parameters"] for row in star], [row["value"] for row in star]
        axes.plot(places, heights, "*", color=color, markeredgecolor=palette.INK, markersize=13)


def judge_listops_parity(view: View) -> Judgement:
    """Return both NRGPT transitions within a factor 1.5 of the recurrent GPT's, by fits to each seed."""
    parts = [(view.artifact.axes["model"].values[model].label, _ratio(view, model)) for model in ("ff1", "ff2w")]
    return combine(parts, FAILS, HOLDS)


def judge_listops_order(view: View) -> Judgement:
    """Return the recurrent GPT's transition below FF1's, and FF1's below FF2W's, paired by seed."""
    labels = view.artifact.axes["model"].values
    parts = []
    for first, second in (("rgpt_parallel", "ff1"), ("ff1", "ff2w")):
        left, right = _logs(view, first), _logs(view, second)
        label = f"{labels[first].label} before {labels[second].label}"
        if isinstance(left, str) or isinstance(right, str):
            parts.append((label, Judgement(UNDECIDED, left if isinstance(left, str) else str(right))))
            continue
        interval = intervals.compare(right, left)
        numbers = (math.exp(interval.mean), math.exp(interval.low), math.exp(interval.high))
        text = "ratio of parameters {:.2f} [{:.2f}, {:.2f}]".format(*numbers)
        parts.append((label, tested(interval, f"{text}, {interval.count} seeds", 0.0, relative=True)))
    return combine(parts, FAILS, HOLDS)


def judge_learns_the_answers(view: View) -> Judgement:
    """Judge the accuracy of each family's widest model, if it has more parameters than the printed transition."""
    labels = view.artifact.axes["model"].values
    parts = [(labels[model].label, guarded(view, partial(_learned, model))) for model in MODELS]
    return combine(parts, FAILS, HOLDS)


def _learned(model: str, view: View) -> Judgement:
    places = [place for place in map(dict, view.points) if place["model"] == model]
    sizes = {place["width"]: view.counted("parameters", place) or 0.0 for place in places}
    widest = max(sizes, key=lambda width: sizes[width], default="")
    found = view.samples(ACCURACY, {"model": model, "width": widest}) if widest else {}
    if not found:
        return Judgement(UNDECIDED, "not run")
    printed = view.artifact.summary[f"transition_{model}"].published or 0.0
    size = f"width {widest}, {sizes[widest]:,.0f} parameters"
    if sizes[widest] <= printed:
        return Judgement(UNDECIDED, f"{size}: the printed transition is at {printed:,.0f}")
    interval = intervals.of([probit(accuracy) for accuracy in found.values()])
    mean, low, high = (from_probit(value) for value in (interval.mean, interval.low, interval.high))
    text = f"{size}: accuracy {mean:.3f} [{low:.3f}, {high:.3f}], {interval.count} seeds"
    return tested(interval, f"{text}, above {THRESHOLD:g} wanted", probit(THRESHOLD))


def _ratio(view: View, model: str) -> Judgement:
    own, baseline = _logs(view, model), _logs(view, "rgpt_parallel")
    for found in (own, baseline):
        if isinstance(found, str):
            return Judgement(UNDECIDED, found)
    assert not isinstance(own, str) and not isinstance(baseline, str)
    interval, most = intervals.compare(own, baseline), math.log(PARITY)
    numbers = (math.exp(interval.mean), math.exp(interval.low), math.exp(interval.high))
    text = "ratio of parameters {:.2f} [{:.2f}, {:.2f}]".format(*numbers)
    return tested(interval, f"{text}, {interval.count} seeds", -most, most, relative=True)


def _logs(view: View, model: str) -> dict[int, float] | str:
    """Return the logarithm of the transition of each seed, or why there is none."""
    found = {}
    largest = max((dict(key) for key in view.points), key=lambda place: view.counted("parameters", place) or 0.0)
    view.samples(ACCURACY, {**largest, "model": model})
    sizes = [place for place in map(dict, view.points) if place["model"] == model]
    seeds = [set(view.unwatched().samples(ACCURACY, place)) for place in sizes]
    for seed in sorted(set.intersection(*seeds)) if seeds else []:
        fitted, why = _fit(view, model, seed)
        if fitted is None:
            return f"{view.artifact.axes['model'].values[model].label}, seed {seed}: {why}"
        found[seed] = math.log(fitted.size)
    return found or f"{view.artifact.axes['model'].values[model].label}: not run"


def _fit(view: View, model: str, seed: int | None = None) -> tuple[Transition | None, str]:
    """Return the logistic curve through all runs of a model, or those of one seed; or why there is none."""
    sizes, accuracies = [], []
    for key in view.points:
        place = dict(key)
        parameters = view.counted("parameters", place)
        if place["model"] != model or parameters is None:
            continue
        for own, value in view.unwatched().samples(ACCURACY, place).items():  # of all sizes the largest is judged
            if seed in (None, own):
                sizes.append(parameters)
                accuracies.append(value)
    if not sizes:
        return None, ""
    try:
        return transition(sizes, accuracies), ""
    except ValueError as error:
        return None, str(error)


def _row(metric: str, model: str, parameters: float | None, seed: int | str, value: float) -> Row:
    size = 0.0 if parameters is None else float(f"{parameters:.8g}")
    return {"metric": metric, "model": model, "parameters": size, "seed": seed, "value": round(value, 8)}


def _answers(view: View) -> int | None:
    """Return how many answers a question has: the modulus of the task."""
    for point in view.points.values():
        for cell in point.cells.values():
            return int(cell.config["data"]["task"]["modulus"])
    return None


def _losses(axes: "Axes", rows: Sequence[Row], color: str) -> None:
    for metric, line in LOSSES.items():
        sizes: dict[float, list[float]] = {}
        for row in rows:
            if row["metric"] == metric:
                sizes.setdefault(row["parameters"], []).append(row["value"])
        points = sorted((size, intervals.mean(values)) for size, values in sizes.items())
        if points:
            axes.plot(*zip(*points, strict=True), line, color=color, marker=LOSS_MARKS[metric], markersize=3)
