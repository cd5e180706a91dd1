"""Scaling laws: a power law fitted to losses, and the relative gap of two exponents.  Needs no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paper_repro.metrics import quantities, students_t
from paper_repro.metrics.lines import fit_line
from paper_repro.metrics.quantities import Quantity

_FEWEST_POINTS = 3
"""A line has two parameters; the third point is the first that leaves an error to estimate."""


@dataclass(frozen=True)
class PowerLaw:
    """``loss = irreducible_loss + exp(intercept) * compute^(-exponent)``, as fitted."""

    quantity: ClassVar[Quantity] = quantities.SCALING_EXPONENT

    exponent: float
    intercept: float
    """Natural logarithm of the reducible loss at compute 1."""
    irreducible_loss: float
    r_squared: float
    """R^2 in log(loss - irreducible_loss); NaN if all losses are equal, because nothing is left to explain."""
    exponent_standard_error: float
    exponent_interval: tuple[float, float]
    confidence: float
    residuals: tuple[float, ...]
    """log(loss - irreducible_loss) minus the line, in the order of the points."""
    degrees_of_freedom: int

    def loss(self, compute: float) -> float:
        """Return the fitted loss at ``compute`` (positive, in the unit of the fit)."""
        return self.irreducible_loss + math.exp(self.intercept - self.exponent * math.log(compute))


def fit_power_law(
    compute: Sequence[float],
    loss: Sequence[float],
    *,
    irreducible_loss: float = 0.0,
    confidence: float = 0.95,
) -> PowerLaw:
    """Fit ``log(L - E) = a - alpha log C`` by ordinary least squares over all points, seeds pooled and not averaged.

    Equation: EBT, appendix D.1.1.  The paper's 8.97 % gap comes out with E = 0, with every (size, seed) as a point of
    its own and with one ``a``.  The interval is Student's t.  It takes the residuals as independent and equally wide:
    runs of one seed share a part of their noise, and sizes may differ in theirs.  Where there are several seeds of
    every size, fit each seed by itself and take the interval over seeds.

    Args:
        compute: FLOPs, parameters or tokens, positive; the exponent is the same for every unit.
        loss: nats per token, one for each compute.
        irreducible_loss: E, chosen by the caller, below every loss.
        confidence: of the interval, in (0, 1).

    Raises:
        ValueError: lengths that differ, fewer than three points, compute that is not positive, or the same everywhere,
            a loss that is not finite or not above ``irreducible_loss``, a confidence outside (0, 1).
    """
    _check_confidence(confidence)
    x, y = _log_points(compute, loss, irreducible_loss)
    freedom, line = len(x) - 2, fit_line(x, y)
    middle, mean = math.fsum(x) / len(x), math.fsum(y) / len(y)
    total = math.fsum((height - mean) ** 2 for height in y)
    standard_error = math.sqrt(line.residual / freedom / line.spread)
    half_width = students_t.half_width(freedom, confidence) * standard_error
    return PowerLaw(
        exponent=-line.slope,
        intercept=mean - line.slope * middle,
        irreducible_loss=irreducible_loss,
        r_squared=1 - line.residual / total if len(set(y)) > 1 else math.nan,
        exponent_standard_error=standard_error,
        exponent_interval=(-line.slope - half_width, -line.slope + half_width),
        confidence=confidence,
        residuals=tuple(height - line.at(place) for place, height in zip(x, y, strict=True)),
        degrees_of_freedom=freedom,
    )


@dataclass(frozen=True)
class ExponentGap:
    """How much faster one model's loss falls than another's."""

    quantity: ClassVar[Quantity] = quantities.SCALING_EXPONENT_GAP

    percent: float
    interval: tuple[float, float]
    """In percent."""
    confidence: float
    error: float
    """Standard error of the logarithm of the ratio."""
    freedom: float
    """Degrees of freedom of Student's t."""

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.percent:+.2f} % [{low:+.2f}, {high:+.2f}]"


def exponent_gap(candidate: PowerLaw, baseline: PowerLaw, *, confidence: float = 0.95) -> ExponentGap:
    """Return ``100 (alpha_candidate / alpha_baseline - 1)``, in percent, with an interval by the delta method.

    On the logarithm of the ratio the variance is ``(se_c / alpha_c)^2 + (se_b / alpha_b)^2``, and the quantile is
    Student's t with Welch-Satterthwaite degrees of freedom.  Not a bootstrap over points: with five sizes, the largest
    two with one seed each, a resample often lacks an end of the range and then fits another law.
    The two fits must be of different runs.

    Raises:
        ValueError: an exponent that is not positive, fits with different irreducible losses, or a confidence outside
            (0, 1).
    """
    _check_confidence(confidence)
    for role, law in (("candidate", candidate), ("baseline", baseline)):
        if not law.exponent > 0:
            raise ValueError(
                f"the {role}'s exponent is {law.exponent:g}: a ratio needs positive ones, its loss does not fall"
            )
    _check_irreducible(candidate, baseline)
    ratio = candidate.exponent / baseline.exponent
    errors = [law.exponent_standard_error / law.exponent for law in (candidate, baseline)]
    error, freedom = _welch(errors, (candidate, baseline))
    half_width = students_t.half_width(freedom, confidence) * error
    low, high = ratio * math.exp(-half_width), ratio * math.exp(half_width)
    return ExponentGap(100 * (ratio - 1), (100 * (low - 1), 100 * (high - 1)), confidence, error, freedom)


def _welch(errors: Sequence[float], laws: Sequence[PowerLaw]) -> tuple[float, float]:
    """Return the standard error of a sum of independent terms with those standard errors, one for each law, and its
    Welch-Satterthwaite degrees of freedom.
    """
    parts = [error**2 for error in errors]
    variance = sum(parts)
    if variance == 0:
        return 0.0, 1.0
    shares = [part / variance for part in parts]
    freedom = 1 / sum(share**2 / law.degrees_of_freedom for share, law in zip(shares, laws, strict=True))
    return math.sqrt(variance), freedom


def _log_points(
    compute: Sequence[float], loss: Sequence[float], irreducible_loss: float
) -> tuple[list[float], list[float]]:
    if len(compute) != len(loss):
        raise ValueError(f"{len(compute)} compute values and {len(loss)} losses: give one loss for each compute")
    if len(compute) < _FEWEST_POINTS:
        raise ValueError(
            f"{len(compute)} points, a power law with an error needs at least {_FEWEST_POINTS}: run more sizes"
        )
    for cost, value in zip(compute, loss, strict=True):
        if not (math.isfinite(cost) and cost > 0):
            raise ValueError(f"compute {cost:g}: expected positive and finite numbers")
        if not (math.isfinite(value) and value > irreducible_loss):
            raise ValueError(
                f"loss {value:g} at compute {cost:g}: expected a finite number above the irreducible loss "
                f"{irreducible_loss:g}; leave diverged runs out, or lower the irreducible loss"
            )
    if len(set(compute)) == 1:
        raise ValueError(f"all {len(compute)} points have compute {compute[0]:g}: a power law needs at least two sizes")
    return [math.log(cost) for cost in compute], [math.log(value - irreducible_loss) for value in loss]


def _check_irreducible(candidate: PowerLaw, baseline: PowerLaw) -> None:
    if candidate.irreducible_loss != baseline.irreducible_loss:
        raise ValueError(
            f"irreducible losses {candidate.irreducible_loss:g} and {baseline.irreducible_loss:g}: exponents compare "
            "only at one common value, fit both again with it"
        )


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence!r}, expected a number between 0 and 1, such as 0.95")
