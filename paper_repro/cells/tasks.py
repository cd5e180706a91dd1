"""What a cell does when it is run, as the runner sees it: some cells in, one outcome each out.

An experiment config names its task by ``_target_`` (``paper_repro.training.fit.Fit`` trains and evaluates; others only
count or measure).  A task is given one cell, or several that differ only in what the config's ``machine.stack.over``
allows.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from paper_repro.base.configs import instantiate, require
from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes, write_atomically
from paper_repro.base.identity import MACHINE

FINISHED = "finished"
DIVERGED = "diverged"
OUT_OF_MEMORY = "oom"
FAILED = "failed"
NOT_FINITE = "not finite"
"""Why a metric that was measured has no value in a record, which holds finite numbers alone."""
NODE_LOST = 75
"""The exit code of a process that ended because another node did."""
LOSS_POINTS = 100
"""The most points of a loss curve; each is the mean loss over an equal share of the steps."""
ATTACHMENT_BYTES = 300_000
"""The most that one file beside a record may hold."""
WEIGHTS = "weights.safetensors"
"""The file beside the record of a cell that has trained a model."""
CHECKPOINTS = "checkpoints"
"""The folder of checkpoints, in a cell's folder or in that of a stack."""
CHECKPOINT = re.compile(r"step-([0-9]{9,})\.ckpt")
"""The name of a checkpoint, with its step."""


@dataclass(frozen=True)
class Cell:
    """One resolved experiment config, seed included, and the identity that follows from it."""

    id: str
    config: dict[str, Any] = field(repr=False)

    @property
    def machine(self) -> dict[str, Any]:
        """The section that changes place and speed alone; it may be absent."""
        return self.config.get(MACHINE) or {}


@dataclass(frozen=True)
class Cost:
    """What a cell costs, counted before it is run."""

    parameters: int
    """Trainable parameters."""
    multiply_adds: int
    """Multiply-adds of one forward pass of one batch: matrix products, and 5 per element of a LayerNorm (fvcore's)."""
    step_flops: int
    """FLOPs of one training step, forward and backward of all its batches: two a multiply-add of matrix products."""
    steps: int
    """Training steps of the cell."""
    memory_bytes: int
    """Weights and Adam's moments, and the tensors that live at once in a training step, when they are most."""


@dataclass(frozen=True)
class Rehearsal:
    """What a few steps of a cell took on made-up data."""

    step_seconds: float = 0.0
    """The median over optimiser steps."""
    evaluation_seconds: float = 0.0
    """Seconds a batch."""
    memory_bytes: int = 0
    """The most at once: of the GPU that torch has allocated, else of the process."""
    checkpoint_bytes: int = 0
    micro_batch: int | None = None
    """The rows that a step took at once, where a whole batch was out of memory."""
    trouble: str = ""
    """Why the cell cannot run."""


@dataclass
class Outcome:
    """What became of one cell."""

    status: str
    metrics: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Name to (step, value) pairs; thinned when the record is written."""
    parameters: int | None = None
    """Trainable parameters.  Where the task counts a cell's ``Cost``, the worker fills in these two from it."""
    multiply_adds: int | None = None
    seconds: float = 0.0
    """Wall-clock seconds this cell took; its share where cells were run as one batch."""
    peak_memory_mib: float | None = None
    data_hashes: dict[str, str] = field(default_factory=dict)
    attachments: dict[str, str] = field(default_factory=dict)
    """File name to SHA-256 of what lies in ``folder / cell.id`` and belongs beside the record (texts, traces)."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Metric to what it lacks, "needs gpt2: ..." with the command that mends it."""
    measured: dict[str, list[str]] = field(default_factory=dict)
    """Probe to the metrics and files that it gave, those that are unavailable included."""
    compiled: str = ""
    """Whether the training loss was compiled, and why; nothing where the machine section did not ask for it."""
    note: str = ""
    """For a cell that did not finish: the step, and what the user can do."""

    def attach(self, folder: Path, file: str, content: bytes) -> None:
        """Write a file that belongs beside the record into ``folder``, the cell's own."""
        write_atomically(folder / file, content)
        self.attachments[file] = sha256_of_bytes(content)


@dataclass
class Findings:
    """What a probe found; it goes into the cell's record."""

    metrics: dict[str, float] = field(default_factory=dict)
    attachments: dict[str, bytes] = field(default_factory=dict)
    """File name to content: what is too long for a record (texts, traces); it lies beside the record."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Metric to what it lacks and the command that mends it, for example "needs gpt2: ..."; printed as n/a."""


class StopRequestedError(Exception):
    """Raised by a task after it has saved what it needs to go on; nothing is recorded."""


class Report(Protocol):
    """Tells the runner about a task's progress."""

    saves: bool
    """Whether the task has computed what it would save on a request to stop; where it has not, the process is ended.
    ``progress`` sets it, until the last step."""

    def progress(self, step: int, steps: int, loss: float) -> None:
        """Say that ``step`` of ``steps`` are done; ``loss`` is the latest (mean over the cells of a job)."""

    @property
    def stop_requested(self) -> bool:
        """True once the user has pressed Ctrl-C, or the runner has died: save and raise StopRequestedError."""


class FirstSteps:
    """A ``Report`` that keeps the loss and the end of each step, and asks for a stop after ``steps`` (None: never)."""

    saves = False

    def __init__(self, steps: int | None = None) -> None:
        self.steps, self.losses, self.ends = steps, list[float](), list[float]()

    def progress(self, step: int, steps: int, loss: float) -> None:
        self.losses.append(loss)
        self.ends.append(time.perf_counter())

    @property
    def stop_requested(self) -> bool:
        return self.steps is not None and len(self.losses) >= self.steps


class Task:
    """What an experiment's ``task`` section names; one that only does arithmetic writes ``outcome`` alone."""

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        """Run the cells and return their outcomes in the same order.

        ``folder`` outlives the process: called again with the same cells and folder after a kill, the task goes on
        from what it had saved there.  A cell's own files (final weights) go to ``folder / cell.id``.
        """
        return [self.outcome(cell, folder / cell.id) for cell in cells]

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        """Run one cell, whose own files go to ``folder``; a task that runs several together writes ``run``."""
        raise NotImplementedError

    def cost(self, config: Mapping[str, Any]) -> Cost | None:
        """Return what a cell of that config costs; None where it trains no model; UsageError: it cannot be built."""
        return None

    def rehearse(self, config: Mapping[str, Any]) -> Rehearsal | None:
        """Return what a few steps of a cell of that config take, in a process of its own; None where it trains none."""
        return None

    def check_devices(self, config: Mapping[str, Any]) -> None:
        """Raise UsageError where this machine lacks the devices that the config's ``machine`` section asks for."""

    def measure(self, cell: Cell, folder: Path, name: str) -> Findings:
        """Return what the probe of that name finds on the weights in ``folder``; nothing is trained.

        Raises:
            UsageError: there are no weights, they are damaged or another model's, or the config cannot be built.
        """
        raise UsageError(f"cell {cell.id}: {type(self).__name__} keeps no weights that a probe could measure")


def task_of(config: Mapping[str, Any]) -> Task:
    """Build the task that the config's ``task`` section names."""
    require(config.get("task"), "task", Task, "a task, a class that has run()")
    task: Task = instantiate(config["task"])
    return task


def loss_point(step: int, steps: int) -> int:
    """Return the index of the loss curve's point that step ``step`` (0-based) of ``steps`` counts into."""
    return step * min(LOSS_POINTS, steps) // steps


def weights_of(folder: Path) -> Path:
    """Return the path of a trained cell's weights; UsageError where they are not there."""
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise UsageError(f"{weights}: not there, expected the weights of the cell: run it again, or copy them here")
    return weights


def saved_in(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, the last first."""
    found = (CHECKPOINT.fullmatch(path.name) for path in folder.glob("step-*.ckpt"))
    steps = {int(name[1]) for name in found if name and name[0] == f"step-{int(name[1]):09d}.ckpt"}
    return sorted(steps, reverse=True)
