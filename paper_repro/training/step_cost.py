"""What a training step of a model costs beside one of a baseline: time, memory, and the first step (EBT, table D.5)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report
from paper_repro.training.counting import peak_bytes
from paper_repro.training.machine import Machine, forget_peak_memory, settings
from paper_repro.training.step_time import Stepper, StepSettings, StepTime, build_stepper, each_model, wait


class StepCost(StepTime):
    """Times steps as ``StepTime`` does, and measures each model's first step and its memory by itself.

    Further metrics: ``throughput_<model>``, steps per second; ``first_<model>``, the seconds of the first step of a
    model that has just been built, in a process in which another one has made a step; ``memory_<model>``, the bytes by
    which a forward and a backward pass raise what is allocated; and for all but the first model ``first_ratio_<model>``
    and ``memory_ratio_<model>``, over the first model's.
    """

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        outcomes = super().run(cells, folder, report)
        machine = Machine.of(cells[0].config.get("machine") or {})
        with settings(machine):
            return [
                replace(outcome, metrics={**outcome.metrics, **_further(cell.config, outcome, machine.device)})
                if outcome.status == FINISHED
                else outcome
                for cell, outcome in zip(cells, outcomes, strict=True)
            ]


def _further(config: Mapping[str, Any], outcome: Outcome, device: torch.device) -> dict[str, float]:
    step, models = StepSettings(**config["step"]), each_model(config)
    found: dict[str, float] = {}
    for name, (node, own) in models.items():
        stepper = build_stepper(node, own, step, device)
        wait(device)
        start = time.perf_counter()
        stepper.step()
        wait(device)
        found[f"first_{name}"] = time.perf_counter() - start
        found[f"memory_{name}"] = added_memory(stepper, device)
        found[f"throughput_{name}"] = 1 / outcome.metrics[f"seconds_{name}"]
    baseline, *others = models
    for name in others:
        for kind in ("first", "memory"):
            found[f"{kind}_ratio_{name}"] = found[f"{kind}_{name}"] / found[f"{kind}_{baseline}"]
    return found


def added_memory(stepper: Stepper, device: torch.device) -> float:
    """Return the bytes by which the passes forward and backward of a step raise what is allocated, at their peak."""
    if device.type != "cuda":
        return peak_bytes(stepper.gradients)
    wait(device)
    before = torch.cuda.memory_allocated(device)
    forget_peak_memory(device)
    stepper.gradients()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before
