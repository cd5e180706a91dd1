"""Learning rates as a factor of the base rate, a function of the step alone."""

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from paper_repro.base.errors import at_least, positive


@runtime_checkable
class Schedule(Protocol):
    def factor(self, step: int, steps: int) -> float:
        """Return what the base learning rate is multiplied by at optimiser step ``step`` (0-based) of ``steps``."""


@dataclass(frozen=True)
class Constant:
    """Linear warm-up, then 1.

    With w = ``warmup_steps``, or round(warmup_fraction * steps): factor(t) = (t + 1) / (w + 1) for t < w, then 1.
    ValueError: ``warmup_fraction`` outside [0, 1), or ``warmup_steps`` beside it or below 0.
    """

    warmup_fraction: float = 0.0
    warmup_steps: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_fraction < 1:
            raise ValueError(f"warmup_fraction must lie in [0, 1), got {self.warmup_fraction}")
        if self.warmup_steps is not None:
            at_least("warmup_steps", self.warmup_steps, 0)
            if self.warmup_fraction:
                raise ValueError("warm-up is given by warmup_fraction or by warmup_steps, not by both")

    def factor(self, step: int, steps: int) -> float:
        if not 0 <= step <= steps or steps < 1:
            raise ValueError(f"step {step} is not one of 0 ... {steps}")
        warmup = round(self.warmup_fraction * steps) if self.warmup_steps is None else self.warmup_steps
        return (step + 1) / (warmup + 1) if step < warmup else self.after_warmup(step - warmup, steps, warmup)

    def after_warmup(self, step: int, steps: int, warmup: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Cosine(Constant):
    """Linear warm-up as in ``Constant``, then half a cosine down to ``final_factor`` at the end of the run.

    For t >= w: factor(t) = f + (1 - f) (1 + cos(pi (t - w) / (n - w))) / 2 with n = horizon steps and f = final_factor.
    With ``horizon`` above 1 the run ends before the cosine.
    ValueError: as ``Constant``, ``final_factor`` outside [0, 1], or ``horizon`` below 1.
    """

    final_factor: float = 0.0
    horizon: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.final_factor <= 1:
            raise ValueError(f"final_factor must lie in [0, 1], got {self.final_factor}")
        if not 1 <= self.horizon < math.inf:
            raise ValueError(f"horizon must be 1 or more times the steps of the run, got {self.horizon}")

    def after_warmup(self, step: int, steps: int, warmup: int) -> float:
        progress = step / max(1, round(steps * self.horizon) - warmup)
        return self.final_factor + (1 - self.final_factor) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Exponential(Constant):
    """Linear warm-up as in ``Constant``, then a straight line of log rate down to ``final_factor`` at the end.

    For t >= w: factor(t) = f ** ((t - w) / (n - w)) with n = steps and f = final_factor.  Without warm-up this is the
    decay of NRGPT's ListOps runs.  ValueError: as ``Constant``, or ``final_factor`` outside (0, 1].
    """

    final_factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.final_factor <= 1:
            raise ValueError(f"final_factor must lie in (0, 1], got {self.final_factor}")

    def after_warmup(self, step: int, steps: int, warmup: int) -> float:
        return float(self.final_factor ** (step / max(1, steps - warmup)))


@dataclass(frozen=True)
class Times:
    """Another schedule, multiplied by a positive number: for a group of parameters with a rate of its own."""

    schedule: Schedule
    multiplier: float

    def __post_init__(self) -> None:
        positive("multiplier", self.multiplier)

    def factor(self, step: int, steps: int) -> float:
        return self.multiplier * self.schedule.factor(step, steps)
