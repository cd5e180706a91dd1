"""Means, spreads and intervals of 95 %.

Over seeds an interval is Student's t of paired differences, or Welch's where the sides share no seeds.  A share has
Wilson's binomial interval.  Where models share a sample of test items the error of the sample enters by a two-way
analysis of variance.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

CONFIDENCE = 0.95
ROUNDING = 1e-12
"""Relative: a standard error below it is one of floating-point numbers."""
GROUPS = 100
"""The most groups of neighbouring test items that a jackknife leaves out, one after the other."""
Samples = Mapping[int, float]
"""A value by seed."""
Bound = Literal["=", ">", "<"]
"""Whether values are known (=), or only known to be at least (>) or at most (<) what was measured."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided interval of 95 %; both ends are infinite for a single observation.

    ``count`` are the independent observations (seeds, or pairs of them), ``error`` is the standard error of the mean,
    ``freedom`` the degrees of freedom of Student's t.
    """

    mean: float
    low: float
    high: float
    count: int
    paired: bool = True
    error: float = math.inf
    freedom: float = 1.0

    @property
    def has_spread(self) -> bool:
        """Whether there is an interval: equal values say nothing of how far apart others would be."""
        return self.error > ROUNDING * abs(self.mean)

    def p_value(self, limit: float) -> float:
        """Return the two-sided p-value of the estimate being ``limit``; 1 where it has no interval."""
        if not math.isfinite(self.error) or not self.has_spread:
            return 1.0
        from scipy.special import stdtr

        return float(2.0 * stdtr(self.freedom, -abs(self.mean - limit) / self.error))

    def opened(self, bound: Bound) -> "Interval":
        """Return the interval of values that are partly bounds: nothing is known beyond them."""
        ends: dict[str, Any] = {"=": {}, ">": {"high": math.inf}, "<": {"low": -math.inf}}[bound]
        return dataclasses.replace(self, **ends)


@dataclass(frozen=True)
class Share(Interval):
    """Wilson's binomial interval of a share; all cases count as independent."""

    hits: int = 0
    cases: int = 1

    @property
    def has_spread(self) -> bool:
        return True

    def p_value(self, limit: float) -> float:
        from scipy.stats import binomtest

        return float(binomtest(self.hits, self.cases, limit).pvalue) if 0.0 <= limit <= 1.0 else 0.0


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None for a single value."""
    if len(values) < 2:
        return None
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def rounded(value: float) -> float:
    """Return a number in the eight digits that tables keep."""
    return float(f"{value:.8g}")


def columns(prefix: str, values: Sequence[float]) -> dict[str, float | int | None]:
    spread = sample_std(values)
    return {
        f"{prefix}_mean": rounded(mean(values)) if values else None,
        f"{prefix}_std": None if spread is None else rounded(spread),
        f"{prefix}_seeds": len(values),
    }


def student(center: float, error: float, freedom: float, count: int, paired: bool = True) -> Interval:
    from scipy.special import stdtrit

    half = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * error if error else 0.0
    return Interval(center, center - half, center + half, count, paired, error, freedom)


def of(values: Sequence[float]) -> Interval:
    """Return the t interval of the mean of independent values."""
    center, spread = mean(values), sample_std(values)
    if spread is None:
        return Interval(center, -math.inf, math.inf, 1)
    return student(center, spread / math.sqrt(len(values)), len(values) - 1, len(values))


def pooled(parts: Sequence[tuple[Samples, Samples]]) -> Interval:
    """Return the interval of mean(left) - mean(right), averaged over parts.

    It is paired where two or more seeds are common to all sides of all parts.  Else the parts count as independent, and
    the degrees of freedom are those of Welch and Satterthwaite.
    """
    common = sorted(set.intersection(*(set(left) & set(right) for left, right in parts)))
    if len(common) > 1 or all(len(left) == len(right) == len(common) == 1 for left, right in parts):
        return of([mean([left[seed] - right[seed] for left, right in parts]) for seed in common])
    if len(parts) == 1:
        return welch(*(list(side.values()) for side in parts[0]))
    each = [pooled([part]) for part in parts]
    center, count = mean([one.mean for one in each]), min(one.count for one in each)
    variances = [(one.error / len(each)) ** 2 for one in each]
    return _of_variances(center, variances, [one.freedom for one in each], count)


def welch(left: Sequence[float], right: Sequence[float]) -> Interval:
    """Return Welch's interval of mean(left) - mean(right), of samples that share nothing."""
    center, count = mean(left) - mean(right), min(len(left), len(right))
    variances = [(sample_std(side) or 0.0) ** 2 / len(side) for side in (left, right)]
    return _of_variances(center, variances, [len(left) - 1, len(right) - 1], count)


def _of_variances(center: float, variances: Sequence[float], freedoms: Sequence[float], count: int) -> Interval:
    """Return the interval of a sum of independent parts, by Welch and Satterthwaite."""
    if count < 2:
        return Interval(center, -math.inf, math.inf, count, paired=False)
    whole = math.fsum(variances)
    if whole == 0.0:
        return student(center, 0.0, 1.0, count, paired=False)
    freedom = whole**2 / math.fsum(part**2 / free for part, free in zip(variances, freedoms, strict=True))
    return student(center, math.sqrt(whole), freedom, count, paired=False)


def share(counts: Mapping[int, tuple[int, int]]) -> Share:
    """Return the interval of a share, from hits and cases by seed."""
    from scipy.stats import binomtest

    hits, cases = (sum(column) for column in zip(*counts.values(), strict=True))
    found = binomtest(hits, cases).proportion_ci(CONFIDENCE, method="wilson")
    return Share(hits / cases, float(found.low), float(found.high), len(counts), hits=hits, cases=cases)


def over_items(values: Mapping[int, Sequence[float]]) -> Interval:
    """Return the interval of a mean over seeds and test items, by a two-way analysis of variance.

    With mean squares A of S seeds, B of N items and R of the rest, the variance of the mean is (A + B - R) / (S N), and
    the degrees of freedom are Satterthwaite's (1946).  The items and their order are the same for all seeds.
    """
    import numpy as np

    table = np.array([values[seed] for seed in sorted(values)], dtype=float)  # (S, N)
    num_seeds, num_items = table.shape
    center = float(table.mean())
    if min(num_seeds, num_items) < 2:
        return Interval(center, -math.inf, math.inf, num_seeds)
    rows, columns = table.mean(1), table.mean(0)
    free = (num_seeds - 1, num_items - 1, (num_seeds - 1) * (num_items - 1))
    rest = float(((table - rows[:, None] - columns + center) ** 2).sum()) / free[2]
    squares = (num_items * float(rows.var(ddof=1)), num_seeds * float(columns.var(ddof=1)), rest)
    whole = max(squares[0] + squares[1] - rest, *squares[:2])
    if whole == 0.0:
        return student(center, 0.0, 1.0, num_seeds)
    freedom = whole**2 / sum(square**2 / count for square, count in zip(squares, free, strict=True))
    error = math.sqrt(whole / (num_seeds * num_items))
    return student(center, error, max(num_seeds - 1.0, freedom), num_seeds)


def jackknife(statistic: Callable[[dict[Any, float]], float], losses: Mapping[Any, Sequence[float]]) -> list[float]:
    """Return what each group of test items adds to a statistic of mean losses.

    With the statistic t of all G groups, and t_i without group i, it is t + (G - 1) (mean_j t_j - t_i): Tukey's
    pseudo-values (1958), without his correction of bias.  Their mean is t, the variance of it the jackknife's.

    Args:
        statistic: takes the mean losses by run.
        losses: those of single test items by run; all runs have the same items in the same order.
    """
    import numpy as np

    table = np.array(list(losses.values()), dtype=float)  # (runs, N)
    groups = np.array_split(table, min(GROUPS, table.shape[1]), axis=1)
    sums, sizes = np.stack([part.sum(1) for part in groups]), np.array([part.shape[1] for part in groups])
    without = (sums.sum(0) - sums) / (sizes.sum() - sizes)[:, None]  # (G, runs)
    values = np.array([statistic(dict(zip(losses, row, strict=True))) for row in without.tolist()])
    whole = statistic(dict(zip(losses, table.mean(1).tolist(), strict=True)))
    return [float(value) for value in whole + (len(groups) - 1) * (values.mean() - values)]
