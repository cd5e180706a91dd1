"""Best learning rate of a sweep, read off an Akima interpolant in the logarithm of the rate.  Needs no torch."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from paper_repro.metrics import quantities
from paper_repro.metrics.quantities import Quantity

_FEWEST_RATES = 3
"""Akima's end slopes are extrapolated from two slopes, and two points cannot bracket a minimum."""


@dataclass(frozen=True)
class LearningRateOptimum:
    """Where a sweep is lowest."""

    quantity: ClassVar[Quantity] = quantities.OPTIMAL_LEARNING_RATE

    learning_rate: float
    value: float
    """The interpolant there, in the unit of the swept values; at an edge, the value measured there."""
    edge: Literal["lowest", "highest"] | None
    """Which end of the converged grid is best, or None if the optimum is bracketed."""
    rates: tuple[float, ...]
    """The converged grid, ascending."""
    diverged: tuple[float, ...] = ()
    """Rates whose value was NaN or infinite, ascending; they were left out."""

    @property
    def at_edge(self) -> bool:
        """True if the optimum is not bracketed: the true one may lie outside the grid."""
        return self.edge is not None

    def __str__(self) -> str:
        if self.edge is None:
            sentence = f"optimum {self.value:.4g} at learning rate {self.learning_rate:.3g}"
        else:
            sentence = (
                f"at the edge of the grid: best is {self.value:.4g} at learning rate {self.learning_rate:.3g}, "
                f"the {self.edge} of {len(self.rates)}"
            )
        if self.diverged:
            sentence += "; diverged and left out: " + ", ".join(f"{rate:.3g}" for rate in self.diverged)
        return sentence


def optimal_learning_rate(rates: Sequence[float], values: Sequence[float]) -> LearningRateOptimum:
    """Return the rate at which the Akima interpolant of ``values`` over ``log2(rates)`` is lowest (CEM, Figures 3a and
    5).

    The interpolant is piecewise cubic, so its minimum is found exactly, among its knots and its stationary points.
    Nothing is extrapolated: if the lowest measured value stands at an end of the grid, that point is returned as it
    was measured and ``edge`` says so, even where the interpolant dips lower between it and its neighbour.
    The paper says neither whether the rate is taken in logarithm nor whether perplexity or loss is interpolated: here
    log2 of the rate, and whatever the caller gives.

    Args:
        rates: learning rates, positive, in any order, each once.
        values: what each rate ended with, lower is better; NaN and infinities are diverged runs and are left out.

    Raises:
        ValueError: lengths that differ, an empty sweep, a rate that is not positive and finite, a rate given twice, or
            fewer than three rates that converged.
    """
    ordered = _checked_sweep(rates, values)
    diverged = tuple(rate for rate, value in ordered if not math.isfinite(value))
    converged = [(rate, value) for rate, value in ordered if math.isfinite(value)]
    if len(converged) < _FEWEST_RATES:
        raise ValueError(
            f"{len(converged)} of {len(ordered)} learning rates converged, Akima interpolation needs at least "
            f"{_FEWEST_RATES}: add rates to the sweep" + (", lower ones" if diverged else "")
        )
    grid = tuple(rate for rate, _ in converged)
    exponent, value = _lowest_point(np.log2(grid), np.array([value for _, value in converged]))
    lowest, highest = math.log2(grid[0]), math.log2(grid[-1])
    if exponent == lowest:
        return LearningRateOptimum(grid[0], value, "lowest", grid, diverged)
    if exponent == highest:
        return LearningRateOptimum(grid[-1], value, "highest", grid, diverged)
    return LearningRateOptimum(float(2.0**exponent), value, None, grid, diverged)


def _checked_sweep(rates: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    if len(rates) != len(values):
        raise ValueError(f"{len(rates)} learning rates and {len(values)} values: give one value for each rate")
    if len(rates) == 0:
        raise ValueError("the learning-rate sweep is empty: run its cells first")
    for rate in rates:
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"learning rate {rate:g}: expected positive and finite numbers")
    ordered = sorted((float(rate), float(value)) for rate, value in zip(rates, values, strict=True))
    for (rate, _), (following, _) in itertools.pairwise(ordered):
        if rate == following:
            raise ValueError(f"learning rate {rate:g} stands twice in the sweep: average its seeds first")
    return ordered


def _lowest_point(exponents: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    from scipy.interpolate import Akima1DInterpolator

    end = 0 if values[0] <= values[-1] else -1
    if values[end] < values[1:-1].min():
        return float(exponents[end]), float(values[end])
    interpolant = Akima1DInterpolator(exponents, values)
    stationary = interpolant.derivative().roots(extrapolate=False)
    stationary = stationary[np.isfinite(stationary)]  # a flat stretch is reported as NaN
    candidates = np.concatenate([exponents, stationary])
    heights = np.concatenate([values, interpolant(stationary)])
    lowest = int(np.argmin(heights))
    return float(candidates[lowest]), float(heights[lowest])
