"""Means, spreads and 95 % intervals over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its two-sided 95 % t interval; ``low`` and ``high`` are infinite for a single observation."""

    mean: float
    low: float
    high: float
    count: int
    paired: bool = True


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None for a single value."""
    if len(values) < 2:
        return None
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def compare(left: Mapping[int, float], right: Mapping[int, float]) -> Interval:
    """Return the interval of mean(left) - mean(right) over seeds.

    Paired where two or more seeds are common to both sides (the seed fixes data and initialisation, so the pair shares
    its noise); otherwise Welch's two-sample interval.
    """
    common = sorted(left.keys() & right.keys())
    if len(common) > 1 or (len(left) == len(right) == len(common) == 1):
        return _one_sample([left[seed] - right[seed] for seed in common])
    return welch(list(left.values()), list(right.values()))


def welch(left: Sequence[float], right: Sequence[float]) -> Interval:
    """Return Welch's 95 % interval of mean(left) - mean(right) for samples that share nothing."""
    difference = mean(left) - mean(right)
    if len(left) < 2 or len(right) < 2:
        return Interval(difference, -math.inf, math.inf, min(len(left), len(right)), paired=False)
    parts = [(sample_std(side) or 0.0) ** 2 / len(side) for side in (left, right)]
    variance = sum(parts)
    if variance == 0.0:
        return Interval(difference, difference, difference, min(len(left), len(right)), paired=False)
    freedom = variance**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (left, right), strict=True))
    half = _t_quantile(freedom) * math.sqrt(variance)
    return Interval(difference, difference - half, difference + half, min(len(left), len(right)), paired=False)


def _one_sample(values: Sequence[float]) -> Interval:
    center, spread = mean(values), sample_std(values)
    if spread is None:
        return Interval(center, -math.inf, math.inf, 1)
    half = _t_quantile(len(values) - 1) * spread / math.sqrt(len(values)) if spread else 0.0
    return Interval(center, center - half, center + half, len(values))


def _t_quantile(degrees_of_freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, 0.5 + CONFIDENCE / 2))
