"""Helpers of the tests of machine.compile=auto."""

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.training import compile_trial
from paper_repro.training.build import BuiltCell, build
from paper_repro.training.compile_trial import Verdict
from paper_repro.training.compiled_code import ENVIRONMENT
from paper_repro.training.machine import Machine, settings
from paper_repro.training.passes import Passes

GAINS = Verdict(uncompiled=0.5, compiled=0.25, gain=0.25, cold=20.0, warm=0.01)
LOSES = Verdict(uncompiled=0.5, compiled=0.6, gain=-0.1, cold=20.0, warm=0.01)
STEPS = 120
ENERGY = {
    "module": {"_target_": "paper_repro.tests.training.energy.EnergyRegression"},
    "model": {"_target_": "paper_repro.tests.training.energy.Energy"},
}
DROPOUT = {"model": {"_target_": "paper_repro.tests.training.doubles.Small", "dropout": 0.3}}


class Stop:
    """A report that asks to stop after so many steps; Fit is asked anew for each run."""

    saves = False

    def __init__(self, at: int) -> None:
        self.at, self.step = at, 0

    def progress(self, step: int, steps: int, loss: float) -> None:
        self.step = step

    def check_lease(self) -> None:
        """There is none."""

    @property
    def stop_requested(self) -> bool:
        return self.step >= self.at


def passes_of(one: Cell) -> tuple[BuiltCell, Passes]:
    built = build(one)
    built.data.setup("fit")
    return built, Passes(built, torch.device("cpu"), torch.no_grad)


def place_of(one: Cell) -> tuple[Path, dict[str, Any]]:
    with settings(Machine.of(one.config["machine"])):
        built, passes = passes_of(one)
        kind = compile_trial.kind_of(built, passes)
    return compile_trial.place_of(Path(os.environ[ENVIRONMENT]), kind), kind


def keep(one: Cell, verdict: Verdict) -> Path:
    path, kind = place_of(one)
    compile_trial.write(path, kind, verdict)
    return path


def weights(folder: Path, one: Cell) -> dict[str, torch.Tensor]:
    return load_file(folder / one.id / "weights.safetensors")


def assert_same(found: Outcome, expected: Outcome, folders: tuple[Path, Path], one: Cell) -> None:
    assert (found.status, found.metrics, found.curves) == ("finished", expected.metrics, expected.curves)
    own, others = (weights(folder, one) for folder in folders)
    assert all(torch.equal(own[name], tensor) for name, tensor in others.items())
