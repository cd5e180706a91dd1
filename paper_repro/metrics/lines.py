"""A straight line by least squares, and how far one may trust it beyond its data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paper_repro.metrics import students_t

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Line:
    """y = intercept + slope x, of n points."""

    slope: float
    intercept: float
    count: int
    center: float
    """The mean of x."""
    spread: float
    """Sum of (x - center)^2."""
    residual: float
    """Sum of squared residuals."""

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x

    def mean_interval(self, x: float) -> tuple[float, float]:
        """Return Student's 95 % interval of the line's height at x, which supposes that the line goes on to there."""
        if self.count < 3:
            return -math.inf, math.inf
        variance = self.residual / (self.count - 2)
        error = math.sqrt(variance * (1 / self.count + (x - self.center) ** 2 / self.spread))
        half = students_t.half_width(self.count - 2, CONFIDENCE) * error
        return self.at(x) - half, self.at(x) + half


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """Fit a line to points.

    Raises:
        ValueError: series of different lengths, fewer than two points, or a single x.
    """
    if len(xs) != len(ys) or len(xs) < 2 or len(set(xs)) < 2:
        raise ValueError(f"a line needs points at two or more x, got {len(xs)} x and {len(ys)} y")
    center, height = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - center) ** 2 for x in xs)
    slope = math.fsum((x - center) * (y - height) for x, y in zip(xs, ys, strict=True)) / spread
    intercept = height - slope * center
    residual = math.fsum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return Line(slope, intercept, len(xs), center, spread, residual)
