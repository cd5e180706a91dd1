"""What the figures of EBT's language models share: finished runs, and how two models' exponents compare."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paper_repro.artifacts import intervals, palette
from paper_repro.artifacts.claims import UNDECIDED, Judgement, Place, tested
from paper_repro.artifacts.figures import Row, log_ticks, seeds_and_mean
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.intervals import Interval
from paper_repro.artifacts.views import View
from paper_repro.metrics.scaling import fit_power_law
from paper_repro.papers.ebt.tableD1 import EBT_FLOPS, TRANSFORMER_FLOPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS = "val_loss"
TRANSFORMER, S1, S2 = "transformer", "s1", "s2"
MODELS = (TRANSFORMER, S1, S2)
MARKS = "Faint dots: seeds; marks and lines: means over seeds."
FEWEST_SIZES = 3
"""Different sizes that a power law is fitted to."""
MOST_TICKS = 4
"""Places of a panel that each have a tick."""
LATE = 0.5
"""A curve is fitted from this share of its run on."""
NOT_RUN = Judgement(UNDECIDED, "not run")


@dataclass(frozen=True)
class Run:
    """One finished run and its place."""

    place: Place
    seed: int
    loss: float
    steps: float
    batch: float
    window: float
    depth: float
    width: float
    parameters: float
    """Those of the trunk; 0 where they were not counted."""
    inner: int
    """Steps of a prediction; 0 for a Transformer++."""
    flops: float
    """Those of the whole training, counted; 0 where they were not."""

    @property
    def tokens(self) -> float:
        return self.steps * self.batch * self.window

    @property
    def rule_flops(self) -> float:
        """FLOPs of the training by the paper's rule."""
        return (EBT_FLOPS * self.inner or TRANSFORMER_FLOPS) * self.parameters * self.tokens


Size = Callable[[Run], float]


def runs(view: View, **fixed: str) -> Iterator[Run]:
    """Yield the finished trainings at the places of the scale with those axis values."""
    for key in view.points:
        place = dict(key)
        if not fixed.items() <= place.items():
            continue
        numbers = {name: view.counted(name, place) or 0.0 for name in ("steps", "batch", "window", "depth", "width")}
        costs = [view.samples(name, place) for name in ("trunk_parameters", "step_flops")]
        for seed, loss in sorted(view.samples(LOSS, place).items()):
            parameters, flops = (cost.get(seed, 0.0) for cost in costs)
            inner = _inner_steps(view, place)
            yield Run(place, seed, loss, **numbers, inner=inner, parameters=parameters, flops=flops * numbers["steps"])


def _inner_steps(view: View, place: Place) -> int:
    """Return the steps of a prediction in training; 0 for a Transformer++."""
    cell = next(iter(view.point(place).cells.values()))
    thinking = cell.config["module"].get("thinking")
    return int(thinking["num_steps"]) if thinking else 0


def losses(found: Iterable[Run]) -> dict[int, float]:
    """Return the losses of runs at one place, by seed."""
    return {run.seed: run.loss for run in found}


def chosen(view: View, axis: str) -> list[str]:
    """Return the values of an axis that the scale runs, in the artifact's order."""
    found = {dict(key)[axis] for key in view.points}
    return [value for value in view.artifact.axes[axis].values if value in found]


def exponents(found: Iterable[Run], size: Size) -> dict[int, float]:
    """Return the exponent of the loss over a size, by seed: see ``exponents_of``."""
    return exponents_of([(frozenset(run.place.items()), run.seed, size(run), run.loss) for run in found])


def exponents_of(points: Sequence[tuple[Hashable, int, float, float]]) -> dict[int, float]:
    """Return each seed's exponent, fitted to its sizes and losses.

    One fit a seed: how far the noise of runs differs between sizes, and what a seed gives the models of all of them,
    is then in the spread over seeds.  Seeds that lack one of the models are left out.  None for fewer than three sizes,
    and for a size that was not counted.

    Args:
        points: model, seed, size and loss of each run.
    """
    by_seed: dict[int, dict[Hashable, tuple[float, float]]] = {}
    for model, seed, size, loss in points:
        by_seed.setdefault(seed, {})[model] = size, loss
    models = {model for model, *_ in points}
    found: dict[int, float] = {}
    for seed, own in sorted(by_seed.items()):
        sizes, losses = zip(*own.values(), strict=True)
        if own.keys() == models and len(set(sizes)) >= FEWEST_SIZES and min(sizes) > 0:
            found[seed] = fit_power_law(sizes, losses).exponent
    return found


def larger_exponent(view: View, fixed: Mapping[str, str], size: Size) -> Judgement:
    """Judge whether EBT's loss (S1) falls with a larger exponent over a size than Transformer++'s, at the places with
    those axis values.
    """

    def judge(view: View) -> Judgement:
        sides = [exponents(runs(view, model=model, **fixed), size) for model in (S1, TRANSFORMER)]
        return above_zero(*compared(*sides))

    return guarded(view, judge)


def compared(
    candidate: Mapping[int, float], baseline: Mapping[int, float]
) -> tuple[Interval | None, str, float | None]:
    """Return what ``over_seeds`` does of two exponents, and say their ratio where all are positive."""
    found, text, base = over_seeds(candidate, baseline)
    if found is None:
        return found, text, base
    text = f"exponents {text}"
    if min(*candidate.values(), *baseline.values()) > 0:  # else their ratio may be anything
        logs = [{seed: math.log(value) for seed, value in side.items()} for side in (candidate, baseline)]
        gap = intervals.compare(*logs)
        percents = [100 * math.expm1(end) for end in (gap.mean, gap.low, gap.high)]
        text += ", {:+.1f} % [{:+.1f}, {:+.1f}] relative".format(*percents)
    return found, text, base


Curve = tuple[tuple[float, float], ...]
"""Tokens and loss at each evaluation of a run."""


def curves(view: View, place: Place) -> dict[int, Curve]:
    """Return the validation losses of the finished runs at a place while they trained, by seed."""
    tokens = math.prod(view.counted(name, place) or 0.0 for name in ("batch", "window"))
    found: dict[int, Curve] = {}
    for seed, record in sorted(view.judged(view.point(place)).items()):
        curve = record.curves.get(LOSS)
        if curve is not None and seed in view.samples(LOSS, place):
            steps = zip(curve["step"], curve["value"], strict=True)
            found[seed] = tuple((step * tokens, value) for step, value in steps if step > 0)
    return found


def late_curve(curve: Curve) -> Curve:
    """Return the evaluations from the middle of the run on, or the last three where these are fewer."""
    late = tuple(point for point in curve if point[0] >= LATE * curve[-1][0])
    return late if len(late) >= FEWEST_SIZES else curve[-FEWEST_SIZES:]


def late_exponents(found: Mapping[int, Curve]) -> dict[int, float]:
    """Return each run's exponent over the data, fitted to its late evaluations; none for a run with fewer than
    three.
    """
    late = {seed: late_curve(curve) for seed, curve in found.items()}
    return {
        seed: fit_power_law([tokens for tokens, _ in curve], [loss for _, loss in curve]).exponent
        for seed, curve in late.items()
        if len(curve) >= FEWEST_SIZES
    }


def over_seeds(
    candidate: Mapping[int, float], baseline: Mapping[int, float]
) -> tuple[Interval | None, str, float | None]:
    """Return the interval of the difference of two quantities over seeds, it in words, and the mean of the baseline;
    no interval without two seeds.
    """
    if not candidate or not baseline:
        return None, NOT_RUN.because, None
    found = intervals.compare(candidate, baseline)
    means = [intervals.mean(list(side.values())) for side in (candidate, baseline)]
    if found.count < 2:
        return None, f"{means[0]:.4f} and {means[1]:.4f}, one seed: not judged", means[1]
    text = f"{means[0]:.4f} and {means[1]:.4f}, difference {found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"
    return found, text, means[1]


def above_zero(found: Interval | None, text: str, base: float | None = None, margin: float = 0.0) -> Judgement:
    """Judge whether a difference is above ``-margin``; ``base`` is what it is measured against."""
    if found is None:
        return Judgement(UNDECIDED, text)
    return tested(found, text, -margin, base=base)


def row(panel: str, model: str, seed: int | str, x: float | str, loss: float, note: str = "") -> Row:
    """Return a point of a figure."""
    return {"panel": panel, "model": model, "seed": seed, "x": x, LOSS: round(loss, 8), "note": note}


def rows_over(panel: str, found: Iterable[Run], size: Size) -> list[Row]:
    """Return a point for each run, over a size that is a whole number."""
    return [row(panel, run.place["model"], run.seed, int(size(run)), run.loss) for run in found]


def curve_rows(view: View, panel: str, models: Sequence[str], place: Place) -> list[Row]:
    """Return a point for each evaluation of the runs at a place, over the tokens of training."""
    return [
        row(panel, model, seed, int(tokens), loss)
        for model in models
        for seed, curve in curves(view, {**place, "model": model}).items()
        for tokens, loss in curve
    ]


def draw_points(axes: "Axes", rows: Sequence[Row], names: Mapping[str, str]) -> None:
    """Draw a panel's points: every seed a dot, a line through the means."""
    for model in MODELS:
        points = [(row["x"], row[LOSS]) for row in rows if row["model"] == model]
        seeds_and_mean(axes, points, palette.model("ebt", model), names.get(model))


def over_logarithm(axes: "Axes", rows: Sequence[Row], label: str) -> None:
    """Give a panel a logarithmic axis, with a tick at each place where these are few."""
    axes.set(xscale="log", xlabel=label)
    places = sorted({row["x"] for row in rows})
    if len(places) > MOST_TICKS:
        log_ticks(axes.xaxis)
    else:
        axes.set_xticks(places, labels=[short(place) for place in places])
        axes.minorticks_off()


def short(number: float) -> str:
    """Write a number briefly: 14,336 is 14.3k, 5.4e15 stays so."""
    for unit, letter in ((1e9, ""), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number:.1e}".replace("e+", "e") if not letter else f"{number / unit:.3g}{letter}"
    return f"{number:.3g}"


def means(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Return the places of points, ascending, and the mean loss at each."""
    groups: dict[float, list[float]] = {}
    for row in rows:
        groups.setdefault(row["x"], []).append(row[LOSS])
    places = sorted(groups)
    return places, [intervals.mean(groups[place]) for place in places]


def names_of(view: View) -> dict[str, str]:
    """Return the labels of the models."""
    return {name: value.label for name, value in view.artifact.axes["model"].values.items()}
