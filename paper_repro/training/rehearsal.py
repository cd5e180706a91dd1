"""A few steps, an evaluation and a checkpoint of a cell on made-up data of its shapes: what a machine really takes."""

import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from paper_repro.base.configs import instantiate
from paper_repro.base.identity import MACHINE
from paper_repro.cells.tasks import CHECKPOINTS, FINISHED, Cell, Rehearsal, StopRequestedError
from paper_repro.datamodules.counter_based import Batch, CounterBasedDataModule
from paper_repro.training.build import BuiltCell, build
from paper_repro.training.fit import Fit
from paper_repro.training.machine import forget_peak_memory, peak_memory_mib, settings
from paper_repro.training.tensors import map_tensors, tensors_of

WARM_UP, STEPS = 2, 3
"""Steps that are not timed, because kernels and graphs are built in them, and steps that are."""
PRECISIONS = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
SPLIT = "made_up"


class MadeUp(CounterBasedDataModule):
    """Batches of the shapes of other data, zeros for whole numbers, and numbers between 0 and 1; nothing is read."""

    splits = (SPLIT,)

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__()
        self.data: Any = instantiate(data)
        self.window = getattr(self.data, "window", 0)
        generator = torch.Generator().manual_seed(0)

        def filled(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            return torch.rand(tensor.shape, generator=generator).to(tensor.dtype)

        self._batch = map_tensors(filled, self.data.example_batch())

    def train_batch(self, step: int) -> Batch:
        return self._batch

    def example_batch(self) -> Batch:
        return self._batch

    def evaluation_batches(self, split: str) -> Iterator[Batch]:
        rows = len(tensors_of(self._batch)[0])
        chosen = torch.arange(getattr(self.data, "evaluation_batch_size", None) or rows) % rows
        yield map_tensors(lambda tensor: tensor[chosen], self._batch)


class _Clock:
    """A report that notes when each step has ended, and asks for a stop after some."""

    saves = False

    def __init__(self) -> None:
        self.ends: list[float] = []

    def progress(self, step: int, steps: int, loss: float) -> None:
        self.ends.append(time.perf_counter())

    @property
    def stop_requested(self) -> bool:
        return len(self.ends) >= WARM_UP + STEPS


def rehearse(config: Mapping[str, Any]) -> Rehearsal:
    """Rehearse a cell in a new process, whose memory is the cell's; UsageError: what a run would raise."""
    machine = {
        **(config.get(MACHINE) or {}),
        "progress_every_seconds": 0,  # every step is told, after it has ended
        "checkpoint_every_seconds": None,
        "checkpoint_every_steps": None,
        "logger": None,
    }
    made_up = {"_target_": f"{__name__}.{MadeUp.__name__}", "data": config["data"], "_recursive_": False}
    without: dict[str, Any] = {"callbacks": {}, "evaluate_every": None, "evaluation_batches": None, "keep": None}
    steps = max(config["training"]["steps"], WARM_UP + STEPS)
    training = {**config["training"], **without, "steps": steps}
    cell = Cell("rehearsal", {**config, MACHINE: machine, "data": made_up, "training": training, "probes": {}})
    task, clock = Fit(), _Clock()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with contextlib.suppress(StopRequestedError):
            (outcome,) = task.run([cell], folder, clock)
            if outcome.status != FINISHED:
                return Rehearsal(trouble=outcome.note)
        found = sum(path.stat().st_size for path in (folder / CHECKPOINTS).rglob("*") if path.is_file())
    times = [after - before for before, after in itertools.pairwise(clock.ends)][-STEPS:]
    built = build(cell)
    device = built.machine.device
    trained = peak_memory_mib(device)
    forget_peak_memory(device)
    with settings(built.machine):
        built.module.to(device)
        try:
            seconds = min(_seconds_of_an_evaluation(built) for _ in range(2))
        except torch.OutOfMemoryError:
            return Rehearsal(trouble=f"an evaluation is out of memory on {device}: lower data.evaluation_batch_size")
    return Rehearsal(
        step_seconds=statistics.median(times),
        evaluation_seconds=seconds,
        memory_bytes=round(max(trained, peak_memory_mib(device)) * 2**20),
        checkpoint_bytes=found,
        micro_batch=task.micro_batch,
    )


def _seconds_of_an_evaluation(built: BuiltCell) -> float:
    narrow, started = PRECISIONS.get(built.training.precision), time.perf_counter()
    with torch.autocast(built.machine.device.type, narrow, enabled=narrow is not None):
        built.module.evaluate(built.data)  # ends with numbers, so the device has ended, too
    return time.perf_counter() - started
