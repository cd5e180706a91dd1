"""The size at which models begin to solve a task: a logistic curve through accuracies (NRGPT, figure 3)."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paper_repro.metrics.quantities import Quantity

TRANSITION = Quantity("transition to learning", "parameters", higher_is_better=False)
THRESHOLD = 0.8
"""The accuracy that the fit has to pass (NRGPT, figure 3)."""
DIGITS = 6
"""Significant ones of a fit: those that do not depend on how a processor rounds."""
STEEPEST = 200.0
"""Per decade of size; a step between two grid points can be fitted with any slope above."""


@dataclass(frozen=True)
class Transition:
    """``accuracy(P) = 1 / (1 + exp(-slope (log10 P - middle)))``, its lower and upper ends fixed at 0 and 1."""

    slope: float
    """Per decade."""
    middle: float
    """log10 of the size of accuracy one half."""
    num_points: int

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
    """Fit accuracies to the logarithm of sizes by least squares (NRGPT, figure 3, which does not print its fit).

    Deviation: the authors' fit is unpublished; this one has two parameters, and a slope of at most 200 per decade.

    Raises:
        ValueError: lists of different lengths, fewer than three sizes, a size that is not positive, an accuracy outside
            [0, 1], or accuracies that never pass 0.8 or never are below it, where there is no transition to find;
            accuracies that do not rise with size, so that the fit passes 0.8 outside the sizes.
    """
    if len(sizes) != len(accuracies) or len(set(sizes)) < 3:
        raise ValueError(
            f"{len(sizes)} sizes ({len(set(sizes))} different) and {len(accuracies)} accuracies, expected as many of "
            "each and at least 3 different sizes"
        )
    if not all(0 < size < math.inf for size in sizes):
        raise ValueError(f"sizes must be positive finite numbers of parameters, got {list(sizes)!r}")
    if not all(0 <= accuracy <= 1 for accuracy in accuracies):
        raise ValueError(f"accuracies must be between 0 and 1, got {list(accuracies)!r}")
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
    slope, middle = (float(f"{found:.{DIGITS}g}") for found in min(fits, key=lambda fit: float(fit.cost)).x)
    return Transition(slope, middle, len(logs))
