"""EBT, Table D.1: counts by formula, and the power laws behind the 8.97 %."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Task
from paper_repro.metrics.fits import ExponentGap, PowerLaw, exponent_gap, fit_power_law
from paper_repro.tables import claims, stats
from paper_repro.tables.figure import Canvas, Figure, PrintedNumber, Row
from paper_repro.tables.table import Table
from paper_repro.tables.view import View

TRANSFORMER, EBT = "transformer", "ebt"
CHINCHILLA_IRREDUCIBLE_LOSS = 1.69
MATRICES_PER_LAYER = 7
"""Four of attention and three of the gated feed-forward, each D x D (the feed-forward multiplier is 1)."""
TRANSFORMER_FLOPS = 6
EBT_FLOPS = 20
"""Per parameter, token and optimisation step: (2 forward + 4 backward + 4 Hessian-vector product) on a doubled
sequence."""
Point = tuple[str, int, float, float]
"""Size, seed, FLOPs and printed loss of a run."""


class TrainingCost(Task):
    """Counts parameters and training FLOPs of one size of the scaling study; it trains nothing."""

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        return Outcome(FINISHED, metrics=_count(cell.config))


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


class TableD1(Table):
    """Printed losses with the exponents of several readings of the fit in the summary."""

    def summary(self) -> dict[str, float]:
        rebuilt, printed = (
            {model: points(self.view, model, of_printed) for model in (TRANSFORMER, EBT)}
            for of_printed in (False, True)
        )
        if not all(rebuilt.values()):
            return {}
        transformer, ebt = (_law(rebuilt[model]) for model in (TRANSFORMER, EBT))
        gaps = {
            "gap": _gap(rebuilt),
            "gap_printed_flops": _gap(printed),
            "gap_printed_flops_without_xxs": _gap(printed, "xxs"),
            "gap_seed_means": _gap({model: _seed_means(own) for model, own in rebuilt.items()}),
            "gap_irreducible": _gap(rebuilt, irreducible_loss=CHINCHILLA_IRREDUCIBLE_LOSS),
        }
        gaps |= {f"gap_without_{size}": _gap(rebuilt, size) for size in self.artifact.axes["size"].values}
        exponents = {"exponent_transformer": transformer.exponent, "exponent_ebt": ebt.exponent}
        fits = {"r2_transformer": 100 * transformer.r_squared, "r2_ebt": 100 * ebt.r_squared}
        return {**exponents, **fits, **{name: gap.percent for name, gap in gaps.items()}}


class FigureD1(Figure):
    """Loss against training FLOPs, with the two power laws."""

    size = (6.0, 3.8)
    marks = "Lines: power laws through the printed losses of all seeds, over FLOPs that are counted by formula."

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for model in (TRANSFORMER, EBT):
            own = points(self.view, model)
            for size, seed, flops, loss in own:
                place = {"model": model, "size": size, "seed": seed}
                rows.append({**place, "flops": flops, "loss": loss, "fitted_loss": round(_law(own).loss(flops), 6)})
        return rows

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        unit = self.artifact.metrics["loss"].unit
        names = {model: (self.view.label("model", model), self.color(model)) for model in (TRANSFORMER, EBT)}
        return [
            PrintedNumber(label, row["loss"], unit, at=row["flops"], color=color, tied=False)
            for row in rows
            for label, color in [names[row["model"]]]
        ]

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        axes = canvas.add_subplot()
        for model in (TRANSFORMER, EBT):
            own = [row for row in rows if row["model"] == model]
            label = f"{self.artifact.axes['model'].values[model].label}, power law"
            line = [row["flops"] for row in own], [row["fitted_loss"] for row in own]
            axes.plot(*line, color=self.color(model), linewidth=1, label=label)
        axes.set(xscale="log", yscale="log", xlabel="training FLOPs (rebuilt)", ylabel="loss (nats per token)")
        axes.set_yticks([3, 3.5, 4, 4.5, 5], labels=["3", "3.5", "4", "4.5", "5"])
        axes.minorticks_off()


def estimate_scaling_rate_gap(view: View) -> claims.Estimate:
    """EBT's exponent over Transformer++'s with the delta method's interval, over the printed runs (appendix D.1.1)."""
    runs = {model: points(view, model) for model in (TRANSFORMER, EBT)}
    if not all(runs.values()):
        return claims.nothing("not run")
    gap, seeds = _gap(runs), len({seed for _, seed, _, _ in runs[EBT]})
    interval = stats.student(math.log1p(gap.percent / 100), gap.error, gap.freedom, seeds)
    return claims.Estimate(
        claims.RATIO, "exponent of EBT's loss", "exponent of Transformer++'s loss", interval, logs=True
    )


def points(view: View, model: str, of_printed: bool = False) -> list[Point]:
    """Return the printed runs of one model, with printed FLOPs or, once they are, with those counted by formula."""
    found: list[Point] = []
    for size in view.artifact.axes["size"].values:
        place = {"size": size, "model": model}
        losses, flops = (view.artifact.printed(tuple(place.items()), name) for name in ("loss", "flops"))
        counted = view.only("flops", place)
        assert losses is not None and flops is not None
        if counted is None:
            return []
        cost = flops.mean if of_printed else counted
        found += [(size, seed, cost, loss) for seed, loss in losses.per_seed]
    return found


def _seed_means(runs: Sequence[Point]) -> list[Point]:
    costs = {size: cost for size, _, cost, _ in runs}
    losses = {size: [loss for other, _, _, loss in runs if other == size] for size in costs}
    return [(size, 0, cost, stats.mean(losses[size])) for size, cost in costs.items()]


def _law(runs: Sequence[Point], irreducible_loss: float = 0.0) -> PowerLaw:
    return fit_power_law([run[2] for run in runs], [run[3] for run in runs], irreducible_loss=irreducible_loss)


def _gap(runs: dict[str, list[Point]], without: str = "", irreducible_loss: float = 0.0) -> ExponentGap:
    """Return the gap of the exponents, of all sizes or without one."""
    kept = ([run for run in runs[model] if run[0] != without] for model in (EBT, TRANSFORMER))
    return exponent_gap(*(_law(own, irreducible_loss) for own in kept))
