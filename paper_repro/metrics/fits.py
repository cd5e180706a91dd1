"""What tables fit to results of several runs: lines, scaling laws, optima of learning rates, transitions.  No torch."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


def half_width(freedom: int) -> float:
    """Return how many standard errors Student's 95 % interval reaches to either side."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))


@dataclass(frozen=True)
class Line:
    """y = intercept + slope x, of n points, by least squares."""

    slope: float
    intercept: float
    count: int
    center: float  # the mean of x
    height: float  # the mean of y
    spread: float  # the sum of (x - center)^2
    residual: float  # the sum of squared residuals

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x

    def mean_interval(self, x: float) -> tuple[float, float]:
        """Return Student's 95 % interval of the line's height at x, which supposes that the line goes on to there."""
        if self.count < 3:
            return -math.inf, math.inf
        variance = self.residual / (self.count - 2)
        error = math.sqrt(variance * (1 / self.count + (x - self.center) ** 2 / self.spread))
        half = half_width(self.count - 2) * error
        return self.at(x) - half, self.at(x) + half


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """Fit a line to points; ValueError: series of different lengths, or a single x."""
    if len(xs) != len(ys) or len(set(xs)) < 2:
        raise ValueError(f"a line needs points at two or more x, got {len(xs)} x and {len(ys)} y")
    center, height = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - center) ** 2 for x in xs)
    slope = math.fsum((x - center) * (y - height) for x, y in zip(xs, ys, strict=True)) / spread
    intercept = height - slope * center
    residual = math.fsum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return Line(slope, intercept, len(xs), center, height, spread, residual)


@dataclass(frozen=True)
class PowerLaw:
    """``loss = irreducible_loss + exp(intercept) * compute^(-exponent)``, as fitted."""

    exponent: float
    intercept: float
    irreducible_loss: float
    r_squared: float  # in log(loss - irreducible_loss); NaN if all losses are equal
    exponent_standard_error: float
    freedom: int  # degrees of freedom of the error

    def loss(self, compute: float) -> float:
        """Return the fitted loss at ``compute`` (positive, in the unit of the fit)."""
        return self.irreducible_loss + math.exp(self.intercept - self.exponent * math.log(compute))


def fit_power_law(compute: Sequence[float], loss: Sequence[float], *, irreducible_loss: float = 0.0) -> PowerLaw:
    """Fit ``log(L - E) = a - alpha log C`` by ordinary least squares over all points, seeds pooled and not averaged.

    Equation: EBT, appendix D.1.1.  The paper's 8.97 % gap comes out with E = 0, with every (size, seed) as a point of
    its own and with one ``a``.  The error takes the residuals as independent and equally wide: where there are several
    seeds of every size, fit each seed by itself and take the interval over seeds.

    Args:
        compute: FLOPs, parameters or tokens, positive, at least three; the exponent is the same for every unit.
        loss: nats per token, one for each compute.
        irreducible_loss: E, chosen by the caller, below every loss.

    Raises:
        ValueError: fewer than three points, one compute alone, or a loss that is not above ``irreducible_loss``.
    """
    if len(compute) < 3:
        raise ValueError(f"{len(compute)} points, a power law with an error needs at least 3: run more sizes")
    for cost, value in zip(compute, loss, strict=True):
        if not irreducible_loss < value < math.inf:
            raise ValueError(
                f"loss {value:g} at compute {cost:g}: expected a finite number above the irreducible loss "
                f"{irreducible_loss:g}; leave diverged runs out, or lower the irreducible loss"
            )
    y = [math.log(value - irreducible_loss) for value in loss]
    line, freedom = fit_line([math.log(cost) for cost in compute], y), len(y) - 2
    total = math.fsum((height - line.height) ** 2 for height in y)
    return PowerLaw(
        exponent=-line.slope,
        intercept=line.intercept,
        irreducible_loss=irreducible_loss,
        r_squared=1 - line.residual / total if len(set(y)) > 1 else math.nan,
        exponent_standard_error=math.sqrt(line.residual / freedom / line.spread),
        freedom=freedom,
    )


@dataclass(frozen=True)
class ExponentGap:
    """How much faster one model's loss falls than another's."""

    percent: float
    error: float  # the standard error of the logarithm of the ratio
    freedom: float  # degrees of freedom of Student's t


def exponent_gap(candidate: PowerLaw, baseline: PowerLaw) -> ExponentGap:
    """Return ``100 (alpha_candidate / alpha_baseline - 1)``, in percent, with its error by the delta method.

    On the logarithm of the ratio the variance is ``(se_c / alpha_c)^2 + (se_b / alpha_b)^2``, with Welch-Satterthwaite
    degrees of freedom.  The two fits must be of different runs.

    Raises:
        ValueError: an exponent that is not positive.
    """
    for role, law in (("candidate", candidate), ("baseline", baseline)):
        if not law.exponent > 0:
            raise ValueError(
                f"the {role}'s exponent is {law.exponent:g}: a ratio needs positive ones, its loss does not fall"
            )
    percent, laws = 100 * (candidate.exponent / baseline.exponent - 1), (candidate, baseline)
    parts = [(law.exponent_standard_error / law.exponent) ** 2 for law in laws]
    variance = sum(parts)
    if variance == 0:
        return ExponentGap(percent, 0.0, 1.0)
    freedom = 1 / sum((part / variance) ** 2 / law.freedom for part, law in zip(parts, laws, strict=True))
    return ExponentGap(percent, math.sqrt(variance), freedom)


@dataclass(frozen=True)
class LearningRateOptimum:
    """Where a sweep is lowest."""

    learning_rate: float
    value: float  # of the interpolant there; at an edge, the value measured there
    at_edge: bool  # whether it is an end of the converged grid: the true optimum may lie outside


def optimal_learning_rate(rates: Sequence[float], values: Sequence[float]) -> LearningRateOptimum:
    """Return the rate at which the Akima interpolant of ``values`` over ``log2(rates)`` is lowest (CEM, Figures 3a and
    5).

    The minimum is found exactly, among the knots and stationary points of the piecewise cubic.  If the lowest measured
    value is at an end of the grid, that point is returned as it was measured, even where the interpolant dips lower
    beside it.  The paper says neither whether the rate is taken in logarithm, here log2, nor whether perplexity or loss
    is interpolated.

    Args:
        rates: learning rates, positive, in any order, each once.
        values: what each rate ended with, lower is better; NaN and infinities are diverged runs and are left out.

    Raises:
        ValueError: fewer than three rates that converged.
    """
    from scipy.interpolate import Akima1DInterpolator

    ordered = sorted((float(rate), float(value)) for rate, value in zip(rates, values, strict=True))
    converged = [(rate, value) for rate, value in ordered if math.isfinite(value)]
    if len(converged) < 3:  # Akima's end slopes are extrapolated from two slopes
        raise ValueError(
            f"{len(converged)} of {len(ordered)} learning rates converged, Akima interpolation needs at least "
            "3: add rates to the sweep" + (", lower ones" if len(converged) < len(ordered) else "")
        )
    grid, heights = (np.array(column) for column in zip(*converged, strict=True))
    end = 0 if heights[0] <= heights[-1] else -1
    if heights[end] < heights[1:-1].min():
        return LearningRateOptimum(float(grid[end]), float(heights[end]), at_edge=True)
    exponents = np.log2(grid)
    interpolant = Akima1DInterpolator(exponents, heights)
    stationary = interpolant.derivative().roots(extrapolate=False)
    stationary = stationary[np.isfinite(stationary)]  # a flat stretch is reported as NaN
    candidates = np.concatenate([exponents, stationary])
    heights = np.concatenate([heights, interpolant(stationary)])
    lowest = int(np.argmin(heights))
    if lowest in (0, len(grid) - 1):
        return LearningRateOptimum(float(grid[lowest]), float(heights[lowest]), at_edge=True)
    return LearningRateOptimum(float(2.0 ** candidates[lowest]), float(heights[lowest]), at_edge=False)


THRESHOLD = 0.8
"""The accuracy that a transition to learning has to pass (NRGPT, figure 3)."""
DIGITS = 6
"""Significant ones of a fit: those that do not depend on how a processor rounds."""
STEEPEST = 200.0
"""Per decade of size; a step between two grid points can be fitted with any slope above."""


@dataclass(frozen=True)
class Transition:
    """``accuracy(P) = 1 / (1 + exp(-slope (log10 P - middle)))``, its lower and upper ends fixed at 0 and 1."""

    slope: float  # per decade
    middle: float  # log10 of the size of accuracy one half

    def accuracy(self, size: float) -> float:
        """Return the curve's value at a number of parameters."""
        return 1 / (1 + math.exp(-self.slope * (math.log10(size) - self.middle)))

    @property
    def log_size(self) -> float:
        """log10 of where the curve passes 0.8: ``middle + ln(4) / slope``."""
        return self.middle + math.log(THRESHOLD / (1 - THRESHOLD)) / self.slope

    @property
    def size(self) -> float:
        """Where the curve passes 0.8; fewer parameters are better."""
        return float(10**self.log_size)


def transition(sizes: Sequence[float], accuracies: Sequence[float]) -> Transition:
    """Fit accuracies to the logarithm of sizes by least squares (NRGPT, figure 3).

    Deviation: the authors' fit is unpublished; this one has two parameters, and a slope of at most 200 per decade.

    Args:
        sizes: numbers of parameters, the same ones repeated for several seeds.
        accuracies: from 0 to 1, one for each size.

    Raises:
        ValueError: fewer than three sizes, accuracies that never pass 0.8 or never are below it, where there is no
            transition to find, or that do not rise with size, so that the fit passes 0.8 outside the sizes.
    """
    if len(set(sizes)) < 3:
        raise ValueError(
            f"{len(sizes)} sizes ({len(set(sizes))} different) and {len(accuracies)} accuracies, expected as many of "
            "each and at least 3 different sizes"
        )
    if not min(accuracies) < THRESHOLD < max(accuracies):
        raise ValueError(
            f"accuracies go from {min(accuracies):g} to {max(accuracies):g}, expected some on either side of "
            f"{THRESHOLD}: there is no transition among these sizes; add smaller or larger models"
        )
    fitted = _fit(tuple(map(float, sizes)), tuple(map(float, accuracies)))
    if not math.log10(min(sizes)) <= fitted.log_size <= math.log10(max(sizes)):
        raise ValueError(
            f"the fit passes {THRESHOLD} at 10^{fitted.log_size:.3g} parameters, expected within the sizes from "
            f"{min(sizes):g} to {max(sizes):g}: accuracy does not rise with size here; add sizes or train longer"
        )
    return fitted


@functools.cache  # a table, its claims and its figure ask for the same fits
def _fit(sizes: tuple[float, ...], accuracies: tuple[float, ...]) -> Transition:
    from scipy.optimize import least_squares

    logs, values = np.log10(np.asarray(sizes)), np.asarray(accuracies)

    def rises(parameters: np.ndarray) -> np.ndarray:
        slope, middle = parameters
        return np.tanh(slope * (logs - middle) / 2)

    def residuals(parameters: np.ndarray) -> np.ndarray:
        return 0.5 * (1 + rises(parameters)) - values

    def gradients(parameters: np.ndarray) -> np.ndarray:
        slope, middle = parameters
        steepness = 0.25 * (1 - rises(parameters) ** 2)
        return np.stack([steepness * (logs - middle), -steepness * slope], axis=1)  # (N, 2)

    span = float(np.ptp(logs))
    bounds = ([0.01 / span, logs.min() - span], [STEEPEST, logs.max() + span])
    starts = [(slope, middle) for slope in (2.0, 10.0, 50.0) for middle in np.quantile(logs, (0.25, 0.5, 0.75))]
    precision = {"xtol": 1e-10, "ftol": 1e-12, "gtol": 1e-12}  # far below DIGITS
    fits = [least_squares(residuals, start, gradients, bounds, **precision) for start in starts]
    return Transition(*(float(f"{found:.{DIGITS}g}") for found in min(fits, key=lambda fit: float(fit.cost)).x))
