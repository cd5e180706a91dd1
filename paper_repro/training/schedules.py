"""Learning rates as a factor of the base rate, a function of the step alone."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from paper_repro.base.errors import positive


@runtime_checkable
class Schedule(Protocol):
    def factor(self, step: int, steps: int) -> float:
        """Return what the base learning rate is multiplied by at optimiser step ``step`` (0-based) of ``steps``."""


@dataclass(frozen=True)
class Constant:
    """Linear warm-up, then 1.

    With w = round(warmup_fraction * steps): factor(t) = (t + 1) / (w + 1) for t < w, 1 from step w on.

    Raises:
        ValueError: ``warmup_fraction`` outside [0, 1), or a step outside 0 ... steps.
    """

    warmup_fraction: float = 0.0

    def __post_init__(self) -> None:
        _check_warmup(self.warmup_fraction)

    def factor(self, step: int, steps: int) -> float:
        return _warmup(step, steps, self.warmup_fraction)


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up as in ``Constant``, then half a cosine down to ``final_factor`` at the end of the run.

    For t >= w: factor(t) = f + (1 - f) (1 + cos(pi (t - w) / (n - w))) / 2 with n = horizon steps and f = final_factor.
    Without warm-up the first step has factor 1 and the last, t = n - 1, stands just above f.  With ``horizon`` above 1
    the cosine is cut off: it would end after so many times the steps of the run.

    Raises:
        ValueError: ``warmup_fraction`` outside [0, 1), ``final_factor`` outside [0, 1], ``horizon`` below 1, or a step
            outside 0 ... steps.
    """

    warmup_fraction: float = 0.0
    final_factor: float = 0.0
    horizon: float = 1.0

    def __post_init__(self) -> None:
        _check_warmup(self.warmup_fraction)
        if not 0 <= self.final_factor <= 1:
            raise ValueError(f"final_factor must lie in [0, 1], got {self.final_factor}")
        if not 1 <= self.horizon < math.inf:
            raise ValueError(f"horizon must be 1 or more times the steps of the run, got {self.horizon}")

    def factor(self, step: int, steps: int) -> float:
        warmup = _warmup_steps(steps, self.warmup_fraction)
        if step < warmup:
            return _warmup(step, steps, self.warmup_fraction)
        progress = _progress(step, round(steps * self.horizon), warmup)
        return self.final_factor + (1 - self.final_factor) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Exponential:
    """Linear warm-up as in ``Constant``, then a straight line of log rate down to ``final_factor`` at the end.

    For t >= w: factor(t) = f ** ((t - w) / (n - w)) with n = steps and f = final_factor.  Without warm-up this is the
    decay of NRGPT's ListOps runs, whose last step, t = n - 1, stands just above f.

    Raises:
        ValueError: ``warmup_fraction`` outside [0, 1), ``final_factor`` outside (0, 1], or a step outside 0 ... steps.
    """

    warmup_fraction: float = 0.0
    final_factor: float = 0.1

    def __post_init__(self) -> None:
        _check_warmup(self.warmup_fraction)
        if not 0 < self.final_factor <= 1:
            raise ValueError(f"final_factor must lie in (0, 1], got {self.final_factor}")

    def factor(self, step: int, steps: int) -> float:
        warmup = _warmup_steps(steps, self.warmup_fraction)
        if step < warmup:
            return _warmup(step, steps, self.warmup_fraction)
        return float(self.final_factor ** _progress(step, steps, warmup))


@dataclass(frozen=True)
class Times:
    """Another schedule, multiplied by a number: for a group of parameters with a rate of its own.

    Raises:
        ValueError: ``multiplier`` is not positive.
    """

    schedule: Schedule
    multiplier: float

    def __post_init__(self) -> None:
        positive("multiplier", self.multiplier)

    def factor(self, step: int, steps: int) -> float:
        return self.multiplier * self.schedule.factor(step, steps)


def _check_warmup(fraction: float) -> None:
    if not 0 <= fraction < 1:
        raise ValueError(f"warmup_fraction must lie in [0, 1), got {fraction}")


def _check_step(step: int, steps: int) -> None:
    if not 0 <= step <= steps or steps < 1:
        raise ValueError(f"step {step} is not one of 0 ... {steps}")


def _warmup_steps(steps: int, fraction: float) -> int:
    return round(fraction * steps)


def _progress(step: int, steps: int, warmup: int) -> float:
    _check_step(step, steps)
    return (step - warmup) / max(1, steps - warmup)


def _warmup(step: int, steps: int, fraction: float) -> float:
    _check_step(step, steps)
    return min(1.0, (step + 1) / (_warmup_steps(steps, fraction) + 1))
