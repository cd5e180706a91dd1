"""EBT, Table D.1: counts by formula, and the power laws behind the 8.97 %."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, palette, tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.intervals import compare, mean, student
from paper_repro.artifacts.printed_numbers import PrintedNumber
from paper_repro.artifacts.views import View
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task
from paper_repro.metrics.scaling import ExponentGap, PowerLaw, exponent_gap, fit_power_law

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TRANSFORMER, EBT = "transformer", "ebt"
CHINCHILLA_IRREDUCIBLE_LOSS = 1.69
MATRICES_PER_LAYER = 7
"""Four of attention and three of the gated feed-forward, each D x D (the feed-forward multiplier is 1)."""
TRANSFORMER_FLOPS = 6
EBT_FLOPS = 20
"""Per parameter, token and optimisation step: (2 forward + 4 backward + 4 Hessian-vector product) on a doubled
sequence."""


class TrainingCost(Task):
    """Counts parameters and training FLOPs of one size of the scaling study; a task that trains nothing."""

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [Outcome(FINISHED, metrics=_count(cell.config)) for cell in cells]


def _count(config: dict[str, Any]) -> dict[str, float]:
    trunk, training = config["trunk"], config["training"]
    layers, width = trunk["layers"], trunk["width"]
    exact = MATRICES_PER_LAYER * layers * width**2 + (2 * layers + 1) * width
    vocabulary = 2 * trunk["vocabulary"] * width
    non_embedding = _truncate(exact + vocabulary) - vocabulary
    tokens = training["steps"] * training["sequences"] * training["context"]
    inner = config["optimisation_steps"]
    per_token = EBT_FLOPS * inner if inner else TRANSFORMER_FLOPS
    return {"parameters": non_embedding, "exact_parameters": exact, "flops": per_token * non_embedding * tokens}


def _truncate(count: int) -> int:
    """Return the count as a summary with three significant digits prints it, truncated: 44,810,880 to 44.8 million."""
    unit = 10 ** (len(str(count)) - 3)
    return count // unit * unit


class TableD1(tables.Table):
    def summary(self) -> dict[str, float]:
        if not _complete(self.view):
            return {}
        transformer, ebt = _law(self.view, TRANSFORMER), _law(self.view, EBT)
        found = {
            "exponent_transformer": transformer.exponent,
            "exponent_ebt": ebt.exponent,
            "gap": exponent_gap(ebt, transformer).percent,
            "r2_transformer": 100 * transformer.r_squared,
            "r2_ebt": 100 * ebt.r_squared,
            "gap_printed_flops": _gap(self.view, flops=_printed_flops).percent,
            "gap_printed_flops_without_xxs": _gap(self.view, flops=_printed_flops, without="xxs").percent,
            "gap_seed_means": _gap(self.view, seed_means=True).percent,
            "gap_irreducible": _gap(self.view, irreducible_loss=CHINCHILLA_IRREDUCIBLE_LOSS).percent,
        }
        for size in self.artifact.axes["size"].values:
            found[f"gap_without_{size}"] = _gap(self.view, without=size).percent
        return found

    def remarks(self) -> list[str]:
        if not _complete(self.view):
            return []
        whole, without = _gap(self.view), _gap(self.view, without="xxs")
        return [
            f"How fragile the gap is: {whole} with all sizes (95 % interval by the delta method), {without} without "
            "XXS. The interval takes the points as independent: what the seeds of one size share is not in it."
        ]


class FigureD1(figures.Figure):
    """Loss against training FLOPs, with the two power laws."""

    size = (6.0, 3.8)
    marks = "Lines: power laws through the printed losses of all seeds, over FLOPs that are counted by formula."

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for model in (TRANSFORMER, EBT) if _complete(self.view) else ():
            law = _law(self.view, model)
            for size, seed, flops, loss in _points(self.view, model, _rebuilt_flops):
                place = {"model": model, "size": size, "seed": seed}
                rows.append({**place, "flops": flops, "loss": loss, "fitted_loss": round(law.loss(flops), 6)})
        return rows

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        """Return every printed loss at its FLOPs."""
        labels, unit = self.artifact.axes["model"].values, self.artifact.metrics["loss"].unit
        found = []
        for row in rows:
            color = palette.model(self.artifact.id, row["model"])
            label = labels[row["model"]].label
            found.append(PrintedNumber(label, row["loss"], unit, at=row["flops"], color=color, tied=False))
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes = canvas.add_subplot()
        for model in (TRANSFORMER, EBT):
            own = [row for row in rows if row["model"] == model]
            label = f"{self.artifact.axes['model'].values[model].label}, power law"
            points = [row["flops"] for row in own], [row["fitted_loss"] for row in own]
            axes.plot(*points, color=palette.model(self.artifact.id, model), linewidth=1, label=label)
        axes.set(xscale="log", yscale="log", xlabel="training FLOPs (rebuilt)", ylabel="loss (nats per token)")
        axes.set_yticks([3, 3.5, 4, 4.5, 5], labels=["3", "3.5", "4", "4.5", "5"])
        axes.minorticks_off()


def judge_scaling_rate_gap(view: View) -> Judgement:
    """Judge whether the printed 8.97 % comes out of the printed losses, within the rounding of what is printed."""
    if not _complete(view):
        return Judgement(UNDECIDED, "not run")
    item = view.artifact.summary["gap"]
    assert item.published is not None and item.tolerance is not None and item.tolerance.absolute is not None
    found = _gap(view).percent
    near = abs(found - item.published) <= item.tolerance.absolute
    because = f"{found:.2f} % against {item.published} %, as arithmetic on the printed losses"
    return exactly(near, because)


def judge_scaling_rate_gap_beyond_noise(view: View) -> Judgement:
    return _judge_gap(view, None)


def judge_scaling_rate_gap_without_the_smallest(view: View) -> Judgement:
    return _judge_gap(view, "xxs")


def judge_worse_at_small_size(view: View) -> Judgement:
    """Judge differences paired by seed at each size; a size with one seed is not judged by itself."""
    parts = []
    for size, spec in view.artifact.axes["size"].values.items():
        losses = [dict(_losses(view, size, model)) for model in (EBT, TRANSFORMER)]
        interval = compare(*losses)
        if interval.count < 2:
            parts.append((spec.label, Judgement(UNDECIDED, f"difference {interval.mean:+.4f}, one seed: not judged")))
            continue
        text = f"difference {interval.mean:+.4f} [{interval.low:.4f}, {interval.high:.4f}], {interval.count} pairs"
        base = mean([loss for _, loss in _losses(view, size, TRANSFORMER)])
        parts.append((spec.label, tested(interval, text, 0.0, base=base, seeds=0)))
    return combine(parts, FAILS, HOLDS)


def _judge_gap(view: View, without: str | None) -> Judgement:
    if not _complete(view):
        return Judgement(UNDECIDED, "not run")
    gap = _gap(view, without=without)
    points = len(_points(view, EBT, _rebuilt_flops))
    interval = student(math.log1p(gap.percent / 100), gap.error, gap.freedom, points)
    return tested(interval, f"gap {gap}", 0.0, relative=True, seeds=0)


def _complete(view: View) -> bool:
    return all(view.samples("flops", dict(key)) for key in view.points)


def _losses(view: View, size: str, model: str) -> tuple[tuple[int, float], ...]:
    printed = view.printed((("size", size), ("model", model)), "loss")
    assert printed is not None
    return printed.per_seed


def _rebuilt_flops(view: View, size: str, model: str) -> float:
    (flops,) = view.samples("flops", {"size": size, "model": model}).values()
    return flops


def _printed_flops(view: View, size: str, model: str) -> float:
    printed = view.printed((("size", size), ("model", model)), "flops")
    assert printed is not None
    return printed.mean


FlopsOf = Callable[[View, str, str], float]


def _points(view: View, model: str, flops: FlopsOf) -> list[tuple[str, int, float, float]]:
    """Return size, seed, FLOPs and printed loss of every run of one model."""
    return [
        (size, seed, flops(view, size, model), loss)
        for size in view.artifact.axes["size"].values
        for seed, loss in _losses(view, size, model)
    ]


def _law(
    view: View,
    model: str,
    flops: FlopsOf = _rebuilt_flops,
    without: str | None = None,
    seed_means: bool = False,
    irreducible_loss: float = 0.0,
) -> PowerLaw:
    points = [(size, cost, loss) for size, _, cost, loss in _points(view, model, flops) if size != without]
    if seed_means:
        by_size: dict[str, list[tuple[float, float]]] = {}
        for size, cost, loss in points:
            by_size.setdefault(size, []).append((cost, loss))
        points = [
            (size, pairs[0][0], math.fsum(loss for _, loss in pairs) / len(pairs)) for size, pairs in by_size.items()
        ]
    costs, losses = [cost for _, cost, _ in points], [loss for _, _, loss in points]
    return fit_power_law(costs, losses, irreducible_loss=irreducible_loss)


def _gap(view: View, **options: Any) -> ExponentGap:
    return exponent_gap(_law(view, EBT, **options), _law(view, TRANSFORMER, **options))
