"""Finished trainings of EBT's language models: sizes and losses, their exponents, and the points of figures."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from paper_repro.metrics.fits import fit_power_law
from paper_repro.papers.ebt.tableD1 import EBT_FLOPS, TRANSFORMER_FLOPS
from paper_repro.tables import claims, plots
from paper_repro.tables.figure import Axes, Row
from paper_repro.tables.stats import Samples
from paper_repro.tables.view import View

LOSS = "val_loss"
TRANSFORMER, S1, S2 = "transformer", "s1", "s2"
FEWEST_SIZES = 3
"""Different sizes that a power law is fitted to."""
MOST_TICKS, LARGEST_TICK = 4, 10_000
"""A panel with at most so many different places, none of them larger, has a tick at each."""
LATE = 0.5
"""A curve is fitted from this share of its run on."""


@dataclass(frozen=True)
class Run:
    """One finished training."""

    place: claims.Place
    seed: int
    loss: float
    steps: float
    batch: float
    window: float
    depth: float
    width: float
    parameters: float
    """Non-embedding parameters; 0 where they were not counted."""
    flops: float
    """FLOPs of the whole training, counted; 0 where they were not."""
    inner: int
    """Optimization steps of a prediction; 0 for a Transformer++."""

    @property
    def tokens(self) -> float:
        return self.steps * self.batch * self.window

    @property
    def rule_flops(self) -> float:
        """FLOPs of the training by the paper's rule (appendix D.5)."""
        return (EBT_FLOPS * self.inner or TRANSFORMER_FLOPS) * self.parameters * self.tokens


Size = Callable[[Run], float]
Curve = list[tuple[float, float]]
"""Tokens and validation loss at each evaluation of a run."""


def runs(view: View, **fixed: str) -> list[Run]:
    """Return the finished trainings at the places with these axis values."""
    found = []
    for place in view.places(**fixed):
        numbers = {name: view.counted(name, place) or 0.0 for name in ("steps", "batch", "window", "depth", "width")}
        parameters, flops = (view.samples(name, place) for name in ("trunk_parameters", "step_flops"))
        thinking = next(iter(view.point(place).cells.values())).config["module"].get("thinking")
        inner = int(thinking["num_steps"]) if thinking else 0
        for seed, loss in sorted(view.samples(LOSS, place).items()):
            costs = {"parameters": parameters.get(seed, 0.0), "flops": flops.get(seed, 0.0) * numbers["steps"]}
            found.append(Run(place, seed, loss, **numbers, **costs, inner=inner))
    return found


def exponents(found: Iterable[Run], size: Size) -> dict[int, float]:
    """Return the exponent alpha of ``log L = a - alpha log X`` over a size X, by seed.

    There is a fit for each seed, so that the spread over seeds contains the noise of all of its runs.  Seeds that lack
    a size are left out.
    """
    by_seed: dict[int, dict[float, float]] = {}
    for run in found:
        by_seed.setdefault(run.seed, {})[size(run)] = run.loss
    return fitted({seed: list(own.items()) for seed, own in by_seed.items()})


def curves(view: View, place: claims.Place) -> dict[int, Curve]:
    """Return the validation losses of the finished runs at a place while they trained, by seed."""
    tokens = math.prod(view.counted(name, place) or 0.0 for name in ("batch", "window"))
    found: dict[int, Curve] = {}
    for seed, record in sorted(view.judged(view.point(place)).items()):
        if (curve := record.curves.get(LOSS)) is not None and seed in view.samples(LOSS, place):
            pairs = zip(curve["step"], curve["value"], strict=True)
            found[seed] = [(step * tokens, loss) for step, loss in pairs if step > 0]
    return found


def late_exponents(found: Mapping[int, Curve]) -> dict[int, float]:
    """Return each run's exponent over data, of the evaluations from the middle of the run on, or of the last three."""
    late = {seed: [point for point in curve if point[0] >= LATE * curve[-1][0]] for seed, curve in found.items()}
    return fitted(
        {seed: own if len(own) >= FEWEST_SIZES else found[seed][-FEWEST_SIZES:] for seed, own in late.items()}
    )


def fitted(points: Mapping[int, Curve]) -> dict[int, float]:
    """Return the exponent of each seed's sizes and losses, of the seeds that have all of at least three sizes."""
    most = max(map(len, points.values()), default=0)
    complete = {seed: tuple(zip(*own, strict=True)) for seed, own in sorted(points.items()) if len(own) == most}
    return {
        seed: fit_power_law(sizes, losses).exponent
        for seed, (sizes, losses) in complete.items()
        if most >= FEWEST_SIZES and min(sizes) > 0
    }


def exponent_ratio(parts: Mapping[str, tuple[Samples, Samples]]) -> claims.Estimate:
    """Return EBT's exponent over Transformer++'s, the geometric mean over parts."""
    return claims.ratio("exponent of EBT's loss", "exponent of Transformer++'s loss", parts)


def row(panel: str, model: str, seed: int, x: float, loss: float, note: str = "") -> Row:
    """Return a point of a figure."""
    return {"panel": panel, "model": model, "seed": seed, "x": x, LOSS: round(loss, 8), "note": note}


def rows_over(panel: str, found: Iterable[Run], size: Size) -> list[Row]:
    """Return a point for each run, over a size that is a whole number."""
    return [row(panel, run.place["model"], run.seed, int(size(run)), run.loss) for run in found]


def curve_rows(view: View, panel: str, models: Sequence[str], place: claims.Place) -> list[Row]:
    """Return a point for each evaluation of the runs at a place, over the tokens of training."""
    return [
        row(panel, model, seed, int(tokens), loss)
        for model in models
        for seed, curve in curves(view, {**place, "model": model}).items()
        for tokens, loss in curve
    ]


def draw_panel(axes: Axes, rows: Sequence[Row], view: View, label: str) -> None:
    """Draw losses over a logarithmic axis: each seed a dot, a line through the means."""
    plots.models(axes, view, rows, "x", LOSS)
    axes.set(xscale="log", xlabel=label)
    places = {row["x"] for row in rows}
    if len(places) > MOST_TICKS or max(places, default=0) > LARGEST_TICK:
        plots.log_ticks(axes.xaxis)
    else:
        plots.ticks_at(axes, places)
