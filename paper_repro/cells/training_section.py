"""The training section of a config, and the learning rate, checked before anything heavy is imported."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paper_repro.base.configs import TARGET
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.identity import MACHINE
from paper_repro.cells.machine_section import share_batches

TRAINING = "paper_repro.training.fit.Fit"
"""The task that trains; the training section of any other is its own."""

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")
"""Lightning's words for what a training computes in; "mixed" keeps the weights in float32."""


@dataclass(frozen=True)
class TrainingSettings:
    """The ``training`` section.

    Raises:
        UsageError: a number below 1, an unknown precision, or a ``clip_norm`` that is not positive (null: no clipping).
    """

    steps: int
    clip_norm: float | None = None
    precision: str = "32-true"
    accumulate: int = 1
    """Batches per optimiser step, over all devices; the gradient is that of the mean over their targets."""
    evaluate_every: int | None = None
    """Optimiser steps between evaluations; null: one at the end."""
    evaluation_batches: int | None = None
    """Batches of each split that the evaluations of the curves take; null: all.  The metrics at the end are of all."""
    keep: str | None = None
    """The metric at whose lowest value the weights are kept, for example val_loss; null: the last weights."""
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    """Callbacks of Lightning by name, each a section with a ``_target_``."""

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "evaluate_every", "evaluation_batches"):
            value = getattr(self, name)
            if name in ("evaluate_every", "evaluation_batches") and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"training.{name} must be a whole number of 1 or more, got {value!r}")
        if self.precision not in PRECISIONS:
            hint = nearest(str(self.precision), PRECISIONS)
            near = hint if "did you mean" in hint else ""  # else it lists them once more
            raise UsageError(f"training.precision={self.precision!r}: expected one of {', '.join(PRECISIONS)}{near}")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise UsageError(f"training.clip_norm must be above 0, or null, got {self.clip_norm}")
        if self.evaluation_batches is not None and self.evaluate_every is None:
            raise UsageError(
                f"training.evaluation_batches={self.evaluation_batches} is of curves, which "
                "training.evaluate_every=null leaves out: set both, or neither"
            )
        if self.evaluation_batches is not None and self.keep is not None:
            raise UsageError(
                f"training.keep={self.keep}: kept weights are chosen by whole evaluations; "
                "set training.evaluation_batches=null"
            )


def read_training(section: Mapping[str, Any]) -> TrainingSettings:
    """Return the ``training`` section, every key known.

    Raises:
        UsageError: an unknown or missing key, or a value out of range.
    """
    valid = inspect.signature(TrainingSettings).parameters
    for key in section:
        if key not in valid:
            raise UsageError(f"unknown key 'training.{key}'{nearest(str(key), valid)}")
    if "steps" not in section:
        raise UsageError("training.steps is missing: the number of optimiser steps")
    return TrainingSettings(**section)


def check_training(config: Mapping[str, Any]) -> None:
    """Check what needs no torch of a cell that trains: its ``training`` section, learning rate and batch size.

    Raises:
        UsageError: an unknown or missing key, a value out of range, or devices that cannot share the batches of a step.
    """
    if (config.get("task") or {}).get(TARGET) != TRAINING or "training" not in config:
        return
    accumulate = read_training(config["training"]).accumulate
    machine = config.get(MACHINE) or {}
    if machine.get("nodes", 1) == 1:  # several nodes are refused first where the others were not started
        share_batches(accumulate, machine.get("devices", 1), 1)
    rate = (config.get("optimizer") or {}).get("lr")
    if isinstance(rate, int | float) and rate < 0:
        raise UsageError(f"optimizer.lr={rate:g}: expected a learning rate of 0 or more")
    size = (config.get("data") or {}).get("batch_size")
    if size is not None and (type(size) is not int or size < 1):
        raise UsageError(f"data.batch_size={size!r}: expected a whole number of 1 or more")
