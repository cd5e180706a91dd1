"""How many times fewer tokens one model needs to reach the same final loss as another.  Needs no torch."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from paper_repro.metrics import quantities
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
    bound: Bound
    """"=": interpolated; ">": the baseline never got so low, the ratio is at least this; "<": its smallest budget got
    lower already, the ratio is at most this."""
    interval: tuple[float, float] | None
    """Over seeds; an end is 0 or inf where it lies outside what the baseline was trained for.  None if some budget that
    the ratio rests on has one seed only: an interval without that run's noise would be too narrow."""
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
        return replace(self, ratio=self.ratio / step_time_ratio, interval=interval, step_time_ratio=step_time_ratio)

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
    baseline: Sequence[FinishedRun],
    candidate: Sequence[FinishedRun],
    *,
    replicates: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[Speedup, ...]:
    """Return ``tokens_baseline(l) / tokens_candidate(l)`` at the final loss l of each of the candidate's budgets.

    Source: nGPT, Figure 2, whose way of reading the ratio off the curves is not given; this is ours.

    Both models are tuned over the learning rate at every budget (``tune``).  Of the baseline's budgets those are kept
    whose loss is below that of every smaller one, and the logarithm of its tokens is interpolated linearly in the loss.
    Outside the baseline's losses the ratio is a bound; nothing is extrapolated.

    The interval is a percentile bootstrap: the seeds of every (budget, rate) are drawn again with replacement, and
    tuning and interpolation are repeated.  A replicate that falls outside the baseline's losses counts as 0 for the
    lower end or as inf for the upper.

    Args:
        baseline: runs of the slower model.
        candidate: runs of the model whose speedup is asked.
        replicates: of the bootstrap.
        confidence: of the interval, in (0, 1).
        seed: of the bootstrap; the same seed gives the same interval, bit for bit.

    Returns:
        One speedup for each of the candidate's budgets, ascending in tokens.

    Raises:
        ValueError: as ``tune``, or replicates below 1, or a confidence outside (0, 1).
    """
    if replicates < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"replicates={replicates!r}, confidence={confidence!r}: expected at least 1, and between 0 and 1"
        )
    reference, points = tune(baseline), tune(candidate)
    curve = _envelope(reference)
    generator = np.random.RandomState(seed % 2**32)  # its stream is frozen, unlike that of numpy's newer generators
    baseline_replicates = _resampled(baseline, replicates, generator)
    candidate_replicates = _resampled(candidate, replicates, generator)
    bounds: dict[float, list[tuple[float, float]]] = {point.tokens: [] for point in points}
    for reference_again, points_again in zip(baseline_replicates, candidate_replicates, strict=True):
        curve_again = _envelope(reference_again)
        for point in points_again:
            bounds[point.tokens].append(_range(*_ratio(curve_again, point)))
    fewest = min(budget.num_seeds for budget in curve)
    return tuple(
        Speedup(
            point,
            *_ratio(curve, point),
            _percentiles(bounds[point.tokens], confidence) if min(fewest, point.num_seeds) > 1 else None,
        )
        for point in points
    )


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


def _range(ratio: float, bound: Bound) -> tuple[float, float]:
    return (0.0 if bound == "<" else ratio, math.inf if bound == ">" else ratio)


def _resampled(
    runs: Sequence[FinishedRun], replicates: int, generator: np.random.RandomState
) -> list[tuple[TunedBudget, ...]]:
    groups = _converged_groups(runs)
    means = [
        losses[generator.randint(len(losses), size=(replicates, len(losses)))].mean(axis=1)
        for losses in groups.values()
    ]
    return [
        _best(
            [
                TunedBudget(tokens, float(mean[replicate]), rate, len(losses))
                for ((tokens, rate), losses), mean in zip(groups.items(), means, strict=True)
            ]
        )
        for replicate in range(replicates)
    ]


def _percentiles(bounds: Sequence[tuple[float, float]], confidence: float) -> tuple[float, float]:
    """Return order statistics without interpolation: an infinite bound stays infinite and touches no other."""
    tail = (1 - confidence) / 2
    lower, upper = np.array(bounds).T
    return (
        float(np.quantile(lower, tail, method="lower")),
        float(np.quantile(upper, 1 - tail, method="higher")),
    )
