"""How many times fewer tokens one model needs to reach the same final loss as another.  Needs no torch."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from paper_repro.metrics import quantities, students_t
from paper_repro.metrics.quantities import Quantity

Bound = Literal["=", ">", "<"]


@dataclass(frozen=True)
class FinishedRun:
    """One training run that went to the end of its own schedule; a loss seen mid-run does not belong here."""

    tokens: float
    """Training budget."""
    loss: float
    """Final validation loss, nat/token; NaN or infinite if the run diverged."""
    learning_rate: float
    seed: int


@dataclass(frozen=True)
class TunedBudget:
    """What a model reaches with one token budget at its best learning rate."""

    tokens: float
    loss: float
    """Mean over seeds."""
    learning_rate: float
    num_seeds: int


@dataclass(frozen=True)
class Speedup:
    """The baseline's tokens over the candidate's, at the loss where one of the candidate's budgets ends."""

    quantity: ClassVar[Quantity] = quantities.SPEEDUP

    candidate: TunedBudget
    ratio: float
    """The geometric mean over seeds."""
    bound: Bound
    """"=": interpolated; ">": the baseline never got so low, the ratio is at least this; "<": its smallest budget got
    lower already, the ratio is at most this.  With several seeds: whether that is so for any of them; where it is so
    for some in both ways, what it is for the mean losses."""
    interval: tuple[float, float] | None
    """By Student's t on the logarithms of the seeds' ratios; an end is 0 or inf where a seed has a bound on that side.
    None for fewer than two seeds that all budgets have."""
    by_seed: Mapping[int, tuple[float, Bound]] = field(default_factory=dict)
    """The logarithm of each seed's ratio, and whether it is a bound."""
    step_time_ratio: float = 1.0
    """Candidate's seconds per token over the baseline's, by which the ratio has been divided."""

    def step_time_corrected(self, step_time_ratio: float) -> "Speedup":
        """Return the speedup in time instead of tokens: everything divided by ``t_candidate / t_baseline``, per token.

        Raises:
            ValueError: a ratio of times that is not positive and finite, or a speedup that is corrected already.
        """
        if not (math.isfinite(step_time_ratio) and step_time_ratio > 0):
            raise ValueError(f"step_time_ratio is {step_time_ratio!r}, expected t_candidate / t_baseline, positive")
        if self.step_time_ratio != 1.0:
            raise ValueError(f"already corrected by {self.step_time_ratio:g}: correct the ratio of tokens instead")
        interval = self.interval and (self.interval[0] / step_time_ratio, self.interval[1] / step_time_ratio)
        by_seed = {seed: (value - math.log(step_time_ratio), bound) for seed, (value, bound) in self.by_seed.items()}
        return replace(
            self,
            ratio=self.ratio / step_time_ratio,
            interval=interval,
            by_seed=by_seed,
            step_time_ratio=step_time_ratio,
        )

    def __str__(self) -> str:
        sign = "" if self.bound == "=" else f"{self.bound} "
        interval = "" if self.interval is None else f" [{self.interval[0]:.3g}, {self.interval[1]:.3g}]"
        return f"{sign}{self.ratio:.3g}x{interval}"


def tune(runs: Sequence[FinishedRun]) -> tuple[TunedBudget, ...]:
    """Return, for each token budget in ascending order, the learning rate whose loss is lowest in the mean over seeds.

    A learning rate of which any seed diverged at a budget is not a candidate there.

    Raises:
        ValueError: no runs, tokens or rate not positive and finite, the same (tokens, rate, seed) twice, or a budget at
            which every rate diverged.
    """
    return _best(
        [
            TunedBudget(tokens, float(losses.mean()), rate, len(losses))
            for (tokens, rate), losses in _converged_groups(runs).items()
        ]
    )


def tokens_to_same_loss(
    baseline: Sequence[FinishedRun], candidate: Sequence[FinishedRun], *, confidence: float = 0.95
) -> tuple[Speedup, ...]:
    """Return ``tokens_baseline(l) / tokens_candidate(l)`` at the final loss l of each of the candidate's budgets.

    Source: nGPT, Figure 2, whose way of reading the ratio off the curves is not given; this is ours.

    Both models are tuned over the learning rate at every budget, by the means over seeds (``tune``).  Each seed then
    has a ratio of its own: the candidate's loss of that seed, read off the baseline's losses of the same seed at its
    tuned rates.  Seeds are paired because a seed fixes the order of the data and the random numbers of both models, so
    that part of the noise of a loss cancels.  Of the baseline's budgets those are kept whose loss is below that of
    every smaller one, and the logarithm of its tokens is interpolated linearly in the loss.  Outside the baseline's
    losses the ratio is a bound; nothing is extrapolated.

    The interval is that of Student's t on the logarithms of the seeds' ratios.  (A percentile bootstrap over three
    seeds covers the truth 78 times in 100 where it promises 95.)  Where a seed has a bound, its true value lies farther
    out; the interval is then open on that side, and its other end counts the bound as if it were the value.

    Args:
        baseline: runs of the slower model.
        candidate: runs of the model whose speedup is asked.
        confidence: of the interval, in (0, 1).

    Returns:
        One speedup for each of the candidate's budgets, ascending in tokens.

    Raises:
        ValueError: as ``tune``, or a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r}: expected a number between 0 and 1")
    reference, points = tune(baseline), tune(candidate)
    curves = {seed: _envelope(own) for seed, own in _by_seed(baseline, reference).items()}
    ours: dict[float, dict[int, TunedBudget]] = {}
    for seed, own in _by_seed(candidate, points, every_budget=False).items():
        for budget in own:
            ours.setdefault(budget.tokens, {})[seed] = budget
    found = []
    for point in points:
        here = ours.get(point.tokens, {})
        logs: dict[int, tuple[float, Bound]] = {}
        for seed in sorted(here.keys() & curves.keys()):
            ratio, bound = _ratio(curves[seed], here[seed])
            logs[seed] = (math.log(ratio), bound)
        of_means = _ratio(_envelope(reference), point)
        found.append(_speedup(point, of_means, logs, confidence))
    return tuple(found)


def _by_seed(
    runs: Sequence[FinishedRun], tuned: Sequence[TunedBudget], every_budget: bool = True
) -> dict[int, list[TunedBudget]]:
    """Return each seed's losses at the tuned rates, ascending in tokens; of seeds that have every budget, or of all."""
    rates = {budget.tokens: budget.learning_rate for budget in tuned}
    found: dict[int, list[TunedBudget]] = {}
    for run in sorted(runs, key=lambda run: run.tokens):
        if run.learning_rate == rates[run.tokens]:
            found.setdefault(run.seed, []).append(TunedBudget(run.tokens, run.loss, run.learning_rate, 1))
    return {seed: own for seed, own in found.items() if len(own) == len(tuned) or not every_budget}


def _speedup(
    point: TunedBudget,
    of_means: tuple[float, Bound],
    by_seed: Mapping[int, tuple[float, Bound]],
    confidence: float,
) -> Speedup:
    if not by_seed:
        return Speedup(point, *of_means, None)
    logs = [value for value, _ in by_seed.values()]
    center, bounds = math.fsum(logs) / len(logs), {bound for _, bound in by_seed.values()} - {"="}
    bound: Bound = of_means[1] if len(bounds) > 1 else next(iter(bounds), "=")
    if len(logs) < 2:
        return Speedup(point, math.exp(center), bound, None, by_seed)
    spread = math.sqrt(math.fsum((value - center) ** 2 for value in logs) / (len(logs) - 1))
    half = students_t.half_width(len(logs) - 1, confidence) * spread / math.sqrt(len(logs))
    low = 0.0 if "<" in bounds else math.exp(center - half)
    high = math.inf if ">" in bounds else math.exp(center + half)
    return Speedup(point, math.exp(center), bound, (low, high), by_seed)


def _converged_groups(runs: Sequence[FinishedRun]) -> dict[tuple[float, float], np.ndarray]:
    """Return losses by (tokens, learning rate), of those pairs at which no seed diverged, in a fixed order."""
    if not runs:
        raise ValueError("no finished runs: run the cells of the sweep first")
    losses: dict[tuple[float, float], dict[int, float]] = defaultdict(dict)
    for run in runs:
        if not (0 < run.tokens < math.inf and 0 < run.learning_rate < math.inf):
            raise ValueError(f"{run}: expected tokens and a learning rate that are positive and finite")
        group = losses[run.tokens, run.learning_rate]
        if run.seed in group:
            raise ValueError(f"{run}: there is another run with these tokens, rate and seed; give each run once")
        group[run.seed] = run.loss
    groups = {
        key: np.array([by_seed[seed] for seed in sorted(by_seed)])
        for key, by_seed in sorted(losses.items())
        if all(math.isfinite(loss) for loss in by_seed.values())
    }
    for tokens in sorted({run.tokens for run in runs} - {tokens for tokens, _ in groups}):
        raise ValueError(
            f"every learning rate diverged at {tokens:g} tokens: add lower rates, or leave that budget out knowingly"
        )
    return groups


def _best(tried: Sequence[TunedBudget]) -> tuple[TunedBudget, ...]:
    best: dict[float, TunedBudget] = {}
    for budget in tried:
        if budget.tokens not in best or budget.loss < best[budget.tokens].loss:
            best[budget.tokens] = budget
    return tuple(best[tokens] for tokens in sorted(best))


def _envelope(budgets: Sequence[TunedBudget]) -> list[TunedBudget]:
    """Return the budgets whose loss is below that of every smaller budget: tokens rise and losses fall."""
    kept: list[TunedBudget] = []
    for budget in budgets:
        if not kept or budget.loss < kept[-1].loss:
            kept.append(budget)
    return kept


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
