"""How many times fewer tokens one model needs to reach the same final loss as another.  Needs no torch."""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from paper_repro.metrics.fits import half_width

Bound = Literal["=", ">", "<"]


@dataclass(frozen=True)
class FinishedRun:
    """One training run that went to the end of its own schedule; a loss seen mid-run does not belong here."""

    tokens: float  # the training budget
    loss: float  # the final loss, nat/token; NaN or infinite if the run diverged
    learning_rate: float
    seed: int


@dataclass(frozen=True)
class TunedBudget:
    """What a model reaches with one token budget at its best learning rate."""

    tokens: float
    loss: float  # the mean over seeds
    learning_rate: float


@dataclass(frozen=True)
class Speedup:
    """The baseline's tokens over the candidate's, at the loss where one of the candidate's budgets ends."""

    candidate: TunedBudget
    ratio: float  # the geometric mean over seeds
    bound: Bound
    """"=": interpolated; ">": the baseline never got so low, the ratio is at least this; "<": its smallest budget got
    lower already, the ratio is at most this.  Of several seeds: that of any, or else that of the mean losses."""
    interval: tuple[float, float] | None
    """An end is 0 or inf where a seed has a bound on that side; None for fewer than two seeds that all budgets have."""
    by_seed: Mapping[int, tuple[float, Bound]] = field(default_factory=dict)
    """The logarithm of each seed's ratio, and whether it is a bound."""

    def __str__(self) -> str:
        sign = "" if self.bound == "=" else f"{self.bound} "
        interval = "" if self.interval is None else f" [{self.interval[0]:.3g}, {self.interval[1]:.3g}]"
        return f"{sign}{self.ratio:.3g}x{interval}"


def tune(runs: Sequence[FinishedRun]) -> tuple[TunedBudget, ...]:
    """Return, for each token budget in ascending order, the learning rate whose loss is lowest in the mean over seeds.

    A learning rate of which any seed diverged at a budget is not a candidate there.

    Raises:
        ValueError: no runs, or a budget at which every rate diverged.
    """
    if not runs:
        raise ValueError("no finished runs: run the cells of the sweep first")
    losses: dict[float, dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        losses[run.tokens][run.learning_rate][run.seed] = run.loss
    best = []
    for tokens, by_rate in sorted(losses.items()):
        tried = [
            TunedBudget(tokens, float(np.mean([loss for _, loss in sorted(own.items())])), rate)
            for rate, own in sorted(by_rate.items())
            if all(map(math.isfinite, own.values()))
        ]
        if not tried:
            raise ValueError(f"every learning rate diverged at {tokens:g} tokens: add lower rates")
        best.append(min(tried, key=lambda budget: budget.loss))
    return tuple(best)


def tokens_to_same_loss(baseline: Sequence[FinishedRun], candidate: Sequence[FinishedRun]) -> tuple[Speedup, ...]:
    """Return ``tokens_baseline(l) / tokens_candidate(l)`` at the final loss l of each of the candidate's budgets, in
    the order of their tokens.

    Source: nGPT, Figure 2, whose way of reading the ratio off the curves is not given; this is ours.

    Both models are tuned over the learning rate at every budget, by the means over seeds (``tune``).  Each seed then
    has a ratio of its own: the candidate's loss of that seed, read off the baseline's losses of the same seed at its
    tuned rates, because part of the noise of a loss is common to both.  Of the baseline's budgets those are kept whose
    loss is below that of every smaller one, and the logarithm of its tokens is interpolated linearly in the loss.
    Outside the baseline's losses the ratio is a bound; nothing is extrapolated.

    The interval is that of Student's t, 95 %, on the logarithms of the seeds' ratios.  Where a seed has a bound, the
    interval is open on that side, and its other end counts the bound as if it were the value.

    Raises:
        ValueError: as ``tune``.
    """
    reference, points = tune(baseline), tune(candidate)
    of_seeds = _by_seed(baseline, reference)
    curves = {seed: _envelope(own) for seed, own in of_seeds.items() if len(own) == len(reference)}
    ours = _by_seed(candidate, points)
    found = []
    for point in points:
        logs: dict[int, tuple[float, Bound]] = {}
        for seed in sorted(ours.keys() & curves.keys()):
            for own in ours[seed]:
                if own.tokens == point.tokens:
                    ratio, bound = _ratio(curves[seed], own)
                    logs[seed] = (math.log(ratio), bound)
        found.append(_speedup(point, _ratio(_envelope(reference), point), logs))
    return tuple(found)


def _by_seed(runs: Sequence[FinishedRun], tuned: Sequence[TunedBudget]) -> dict[int, list[TunedBudget]]:
    """Return each seed's losses at the tuned rates, ascending in tokens."""
    rates = {budget.tokens: budget.learning_rate for budget in tuned}
    found: dict[int, list[TunedBudget]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.tokens):
        if run.learning_rate == rates[run.tokens]:
            found[run.seed].append(TunedBudget(run.tokens, run.loss, run.learning_rate))
    return found


def _speedup(point: TunedBudget, of_means: tuple[float, Bound], by_seed: Mapping[int, tuple[float, Bound]]) -> Speedup:
    if not by_seed:
        return Speedup(point, *of_means, None)
    logs = [value for value, _ in by_seed.values()]
    center, bounds = math.fsum(logs) / len(logs), {bound for _, bound in by_seed.values()} - {"="}
    bound: Bound = of_means[1] if len(bounds) > 1 else next(iter(bounds), "=")
    if len(logs) < 2:
        return Speedup(point, math.exp(center), bound, None, by_seed)
    spread = math.sqrt(math.fsum((value - center) ** 2 for value in logs) / (len(logs) - 1))
    half = half_width(len(logs) - 1) * spread / math.sqrt(len(logs))
    low = 0.0 if "<" in bounds else math.exp(center - half)
    high = math.inf if ">" in bounds else math.exp(center + half)
    return Speedup(point, math.exp(center), bound, (low, high), by_seed)


def _envelope(budgets: Sequence[TunedBudget]) -> list[TunedBudget]:
    """Return the budgets whose loss is below that of every smaller budget: tokens rise and losses fall."""
    lowest = itertools.accumulate((budget.loss for budget in budgets), min, initial=math.inf)
    return [budget for budget, before in zip(budgets, lowest, strict=False) if budget.loss < before]


def _ratio(curve: Sequence[TunedBudget], point: TunedBudget) -> tuple[float, Bound]:
    first, last = curve[0], curve[-1]
    if point.loss > first.loss:
        return first.tokens / point.tokens, "<"
    if point.loss < last.loss:
        return last.tokens / point.tokens, ">"
    falling = curve[::-1]
    logarithm = np.interp(
        point.loss, [budget.loss for budget in falling], [math.log(budget.tokens) for budget in falling]
    )
    return math.exp(float(logarithm)) / point.tokens, "="
