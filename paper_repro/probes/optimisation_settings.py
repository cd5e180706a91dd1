"""What an experiment's optimiser, schedule and batch come to, asked of the objects that training would use."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task


class OptimisationSettings(Task):
    """Reads settings off the built optimiser and schedule; a task that trains nothing.

    ``warmup_steps`` is the first optimiser step with the full rate; ``factor_...`` is the share of the initial rate at
    the first step, after a quarter and after half of the steps behind the warm-up, at the last step and at the end;
    ``windows`` and ``tokens`` are of one optimiser step.
    """

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [Outcome(FINISHED, metrics=settings(cell.config)) for cell in cells]


def settings(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a config's ``optimizer``, ``schedule``, ``training`` and ``data`` sections.

    Raises:
        UsageError: an optimiser or schedule that cannot be built, or one that never reaches the full rate.
    """
    training, data, steps = config["training"], config["data"], config["training"]["steps"]
    optimizer = instantiate(config["optimizer"])([torch.nn.Parameter(torch.ones(1, 1))])
    (group,) = optimizer.param_groups
    schedule = instantiate(config["schedule"])
    warmup = next((step for step in range(steps) if schedule.factor(step, steps) == 1.0), None)
    if warmup is None:
        raise UsageError(f"schedule: none of the {steps} steps has the full rate; lower schedule.warmup_fraction")
    places = {
        "first": 0,
        "quarter": warmup + (steps - warmup) // 4,
        "half": warmup + (steps - warmup) // 2,
        "last": steps - 1,
        "end": steps,
    }
    windows = data["batch_size"] * training["accumulate"]
    return {
        "weight_decay": group["weight_decay"],
        "beta1": group["betas"][0],
        "beta2": group["betas"][1],
        "eps": group["eps"],
        "clip_norm": training["clip_norm"],
        "steps": steps,
        "warmup_steps": warmup,
        **{f"factor_{name}": schedule.factor(step, steps) for name, step in places.items()},
        "windows": windows,
        "tokens": windows * data["window"],
    }
