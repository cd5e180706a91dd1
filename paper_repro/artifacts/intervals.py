"""Means, spreads and 95 % intervals over seeds, and p-values that belong to them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paper_repro.base import students_t

CONFIDENCE = 0.95
ROUNDING = 1e-12
"""Relative: a standard error below it is one of floating-point numbers."""


@dataclass(frozen=True)
class Interval:
    """A mean with its two-sided 95 % t interval; ``low`` and ``high`` are infinite for a single observation."""

    mean: float
    low: float
    high: float
    count: int
    paired: bool = True
    error: float = math.inf
    """Standard error of the mean."""
    freedom: float = 1.0
    """Degrees of freedom of Student's t; infinite for a normal interval."""
    bound: Literal["=", ">", "<"] = "="
    """">": some values are only known to be at least what was measured, so that nothing is known upwards; "<": at most,
    so that nothing is known downwards."""

    @property
    def has_spread(self) -> bool:
        """Whether there is an interval: of values that are all the same nobody knows how far apart others would be."""
        return self.error > ROUNDING * abs(self.mean)

    def above(self, bound: float) -> float:
        """Return the one-sided p-value of the mean being above a bound."""
        if math.isinf(bound):
            return 0.0 if bound < 0 else 1.0
        if math.isinf(self.error) or self.bound == "<":
            return 1.0
        if self.error == 0.0:
            return 0.0 if self.mean > bound else 1.0
        return students_t.share_below(self.freedom, (bound - self.mean) / self.error)

    def below(self, bound: float) -> float:
        """Return the one-sided p-value of the mean being below a bound."""
        turned: dict[str, Literal["=", ">", "<"]] = {"=": "=", ">": "<", "<": ">"}
        return dataclasses.replace(self, mean=-self.mean, bound=turned[self.bound]).above(-bound)

    def with_more(self, seeds: int, known: int) -> "Interval":
        """Return the interval of the same mean and spread, of so many seeds more than the known ones."""
        if known < 2:
            return self
        error = self.error * math.sqrt(known / (known + seeds))
        freedom = self.freedom * (known + seeds - 1) / (known - 1)
        return student(self.mean, error, freedom, self.count + seeds, self.paired).opened(self.bound)

    def opened(self, bound: Literal["=", ">", "<"]) -> "Interval":
        """Return the interval of values of which some are bounds."""
        ends: dict[str, Any] = {"=": {}, ">": {"high": math.inf}, "<": {"low": -math.inf}}[bound]
        return dataclasses.replace(self, bound=bound, **ends)


def student(mean: float, error: float, freedom: float, count: int, paired: bool = True) -> Interval:
    """Return the 95 % interval of a mean with its standard error, by Student's t.

    Args:
        mean: the estimate.
        error: its standard error.
        freedom: degrees of freedom; infinite for the normal distribution.
        count: independent observations behind it.
        paired: whether these are differences of pairs.

    Raises:
        ValueError: fewer than two observations, of which no spread can be known.
    """
    if count < 2:
        raise ValueError(f"an interval of {count} observation: its spread is not known, run a second seed")
    half = students_t.half_width(freedom, CONFIDENCE) * error if error else 0.0
    return Interval(mean, mean - half, mean + half, count, paired, error, freedom)


def of(values: Sequence[float]) -> Interval:
    """Return the 95 % t interval of the mean of independent values; infinite for one value."""
    return _one_sample(values)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None for a single value."""
    if len(values) < 2:
        return None
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def rounded(value: float) -> float:
    """Return a number in the eight digits that tables keep; what is printed is rounded from them, here and later."""
    return float(f"{value:.8g}")


def columns(prefix: str, values: Sequence[float]) -> dict[str, float | int | None]:
    """Return mean, sample standard deviation and number of values as columns of a table, in eight digits."""
    spread = sample_std(values)
    return {
        f"{prefix}_mean": rounded(mean(values)) if values else None,
        f"{prefix}_std": None if spread is None else rounded(spread),
        f"{prefix}_seeds": len(values),
    }


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
    variance, count = sum(parts), min(len(left), len(right))
    if variance == 0.0:
        return student(difference, 0.0, 1.0, count, paired=False)
    freedom = variance**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (left, right), strict=True))
    return student(difference, math.sqrt(variance), freedom, count, paired=False)


def _one_sample(values: Sequence[float]) -> Interval:
    center, spread = mean(values), sample_std(values)
    if spread is None:
        return Interval(center, -math.inf, math.inf, 1)
    return student(center, spread / math.sqrt(len(values)), len(values) - 1, len(values))
