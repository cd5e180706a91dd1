"""The task that trains and evaluates: one cell through Lightning, several of one shape as a stack."""

import contextlib
import gc
import itertools
import logging
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import AUTO, MACHINE
from paper_repro.cells import planned, tasks
from paper_repro.cells.planned import TrainingSettings
from paper_repro.cells.tasks import Cell, Findings, Outcome, Rehearsal, Report, Task
from paper_repro.datamodules.counter_based import Batch, CounterBasedDataModule
from paper_repro.training import checkpoints, counting, single
from paper_repro.training.build import BuiltCell, build, check_window, rebuild
from paper_repro.training.ensemble import Ensemble
from paper_repro.training.launch import launched
from paper_repro.training.machine import Machine, forget_peak_memory, peak_memory_mib, settings
from paper_repro.training.steps import Graphs, rows_of
from paper_repro.training.tensors import map_tensors, tensors_of
from paper_repro.training.watch import Evaluations, Journal, LossLog, Watch

_log = logging.getLogger(__name__)
WARM_UP, STEPS = 2, 3
"""Steps that are not timed, because kernels and graphs are built in them, and steps that are."""
SHARED_SECTIONS = ("task", "module", "model", "training", "probes")
"""What cells must have in common to be trained together: the stack runs the code of the first for all of them."""


class Fit(Task):
    """Train, evaluate, and leave the final weights in ``folder / <cell id> / weights.safetensors``.

    A second call goes on from the checkpoints in ``folder``, bit for bit on a CPU.
    """

    micro_batch: int | None = None
    """The rows that a step took at once in the last run, where a whole batch was out of memory."""
    cost = staticmethod(counting.measure)
    check_devices = staticmethod(counting.check_devices)

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        _check_alike(cells)
        machine = asked = Machine.of(cells[0].machine)
        device, rows, self.micro_batch = machine.device, 1, None
        forget_peak_memory(device)
        with settings(machine):
            while True:
                try:
                    built = [build(cell) for cell in cells]
                    built[0].machine = machine
                    alone = asked.count == len(cells) == 1 and built[0].module.automatic_optimization
                    if asked.micro_batch == AUTO and alone:
                        rows = self.micro_batch or rows_of(built[0].data.example_batch())
                    return _fit(built, folder, report)
                except (MemoryError, RuntimeError) as error:
                    # On a CPU torch raises a plain RuntimeError.
                    kinds = torch.OutOfMemoryError | MemoryError
                    if not isinstance(error, kinds) and "can't allocate memory" not in str(error):
                        raise
                    peak = peak_memory_mib(device)
                if rows == 1:
                    break
                built.clear()
                gc.collect()
                torch.cuda.empty_cache()
                self.micro_batch = -(-rows // 2)
                machine = replace(machine, micro_batch=self.micro_batch)
                _log.warning("out of memory on %s: steps take micro-batches of %d rows", device, self.micro_batch)
        advice = "use a smaller data batch, a lower training.precision, or a machine with more memory"
        if len(cells) > 1:
            advice = "lower machine.stack.most, so that fewer cells are trained together"
        note = f"out of memory on {device} with {len(cells)} cell(s) at once: {advice}"
        return [Outcome(tasks.OUT_OF_MEMORY, peak_memory_mib=peak, note=note) for _ in cells]

    def rehearse(self, config: Mapping[str, Any]) -> Rehearsal:
        """Take a few steps, an evaluation and a checkpoint of a cell on made-up data of its shapes.

        In a new process, whose memory is the cell's; UsageError: what a run would raise.
        """
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
        clock = tasks.FirstSteps(WARM_UP + STEPS)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with contextlib.suppress(tasks.StopRequestedError):
                (outcome,) = self.run([cell], folder, clock)
                if outcome.status != tasks.FINISHED:
                    return Rehearsal(trouble=outcome.note)
            found = sum(path.stat().st_size for path in (folder / tasks.CHECKPOINTS).rglob("*") if path.is_file())
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
                trouble = f"an evaluation is out of memory on {device}: lower data.evaluation_batch_size"
                return Rehearsal(trouble=trouble)
        return Rehearsal(
            step_seconds=statistics.median(times),
            evaluation_seconds=seconds,
            memory_bytes=round(max(trained, peak_memory_mib(device)) * 2**20),
            checkpoint_bytes=found,
            micro_batch=self.micro_batch,
        )

    def measure(self, cell: Cell, folder: Path, name: str) -> Findings:
        with settings(Machine.of(cell.machine)):
            built = rebuild(folder, cell, [name])
            built.data.prepare_data()
            built.data.setup("test")
            return _findings(built, name)


def _fit(built: list[BuiltCell], folder: Path, report: Report) -> list[Outcome]:
    for one in built:
        check_window(one)
    if len(built) > 1:
        with closing(Journal(built, folder)) as journal:
            return _fit_stack(built, folder, report, journal)
    (one,), place = built, folder / tasks.CHECKPOINTS
    with launched(one.cell, place, one.machine) as rank, closing(Journal(built, folder)) as journal:
        watch, evaluations, metrics, compiled = single.train(one, place, report, rank, journal)
    outcome = _outcome(one, watch, 0, metrics, evaluations, folder)
    outcome.seconds, outcome.compiled = watch.seconds, compiled
    if one.machine.micro_batch != one.cell.machine.get("micro_batch"):
        halved = f"steps took micro-batches of {one.machine.micro_batch} rows for want of memory"
        outcome.note = "; ".join(filter(None, [outcome.note, halved]))
    return [outcome]


def _fit_stack(built: list[BuiltCell], folder: Path, report: Report, journal: Journal) -> list[Outcome]:
    training, machine, device = built[0].training, built[0].machine, built[0].machine.device
    _check_stackable(training, machine)
    place, identity = folder / tasks.CHECKPOINTS, [one.cell.id for one in built]
    for one in built:
        one.data.prepare_data()
        one.data.setup("fit")
    modules, data = [one.module for one in built], [one.data for one in built]
    graphs = partial(Graphs, must=machine.cuda_graph is True) if machine.graphs else None
    ensemble = Ensemble(modules, data, training.steps, training.clip_norm, training.precision, device, graphs)
    evaluations = Evaluations(built, ensemble.forward_context, journal)
    log = LossLog(len(built), training.steps, device)

    def save(step: int) -> None:
        content = {name: part.state_dict() for name, part in parts.items()}
        checkpoints.save(checkpoints.checkpoint_path(place, step), content, identity)

    watch = Watch(log, machine, report, save, journal)
    parts: dict[str, Any] = {"ensemble": ensemble, "watch": watch, "evaluations": evaluations}
    if (found := checkpoints.newest(place, identity)) is not None:
        content = checkpoints.load(checkpoints.checkpoint_path(place, found), identity)
        for name, part in parts.items():
            part.load_state_dict(content[name])
    watch.stop_if_requested(ensemble.step)
    while ensemble.step < training.steps:
        log.add(ensemble.step, ensemble.advance())
        if evaluations.due(ensemble.step, training.steps):
            ensemble.unstack()
            evaluations.after(ensemble.step)
        if not watch.after_step(ensemble.step):
            break
    watch.stop_if_requested(ensemble.step)
    ensemble.unstack()
    outcomes = []
    for index, (one, diverged_at) in enumerate(zip(built, log.diverged(), strict=True)):
        metrics = evaluations.finish(index, training.steps) if diverged_at is None else {}
        outcomes.append(_outcome(one, watch, index, metrics, evaluations, folder))
    for outcome in outcomes:
        outcome.seconds = watch.seconds / len(built)
        outcome.compiled = "no: cells that are trained together" if machine.compile else ""
    return outcomes


def _outcome(
    built: BuiltCell, watch: Watch, index: int, metrics: dict[str, float], evaluations: Evaluations, folder: Path
) -> Outcome:
    log, diverged_at = watch.log, watch.log.diverged()[index]
    outcome = Outcome(
        tasks.FINISHED,
        metrics=metrics,
        curves={"training_loss": log.curve(index), **evaluations.curves(index)},
        peak_memory_mib=peak_memory_mib(built.machine.device),
        data_hashes=built.data.data_hashes(),
    )
    lower = "lower optimizer.lr, or clip gradients (training.clip_norm)"
    bad = [name for name, value in metrics.items() if not math.isfinite(value)]
    if diverged_at is not None:
        outcome.status, outcome.metrics = tasks.DIVERGED, {}
        outcome.note = f"the loss was not finite at step {diverged_at + 1} of {log.steps}: {lower}"
    elif bad:
        outcome.status, outcome.metrics = tasks.DIVERGED, {}
        outcome.note = f"{', '.join(bad)} not finite after the last step, {log.steps}: {lower}"
    else:
        if log.end < log.steps:
            outcome.note = f"a callback ended the training after step {log.end} of {log.steps}"
        checkpoints.save_weights(folder / built.cell.id / tasks.WEIGHTS, built.module, built.cell.id)
        _measure(built, folder / built.cell.id, outcome)
    return outcome


def _measure(built: BuiltCell, folder: Path, outcome: Outcome) -> None:
    for name in built.probes:
        findings = _findings(built, name)
        outcome.measured[name] = own = [*findings.metrics, *findings.unavailable, *findings.attachments]
        if twice := sorted({*own} & {*outcome.metrics, *outcome.unavailable, *outcome.attachments}):
            raise UsageError(f"probes.{name}: {', '.join(twice)} is there already: leave one probe out, or rename it")
        outcome.metrics |= findings.metrics
        outcome.unavailable |= findings.unavailable
        for file, content in findings.attachments.items():
            outcome.attach(folder, file, content)


def _findings(built: BuiltCell, name: str) -> Findings:
    module = built.module.to(built.machine.device).eval()
    with torch.no_grad():
        findings = built.probes[name].measure(module, built.data, module.seed)
    for file, content in findings.attachments.items():
        try:
            planned.check_attachment_name(file)
        except UsageError as error:
            raise UsageError(f"probes.{name}: {error}") from error
        if len(content) > tasks.ATTACHMENT_BYTES:
            raise UsageError(
                f"probes.{name} leaves {file} of {len(content)} bytes, at most {tasks.ATTACHMENT_BYTES} are kept: "
                "measure fewer tokens or steps"
            )
    return findings


def _check_alike(cells: Sequence[Cell]) -> None:
    first = cells[0]
    for cell in cells[1:]:
        odd = [key for key in SHARED_SECTIONS if cell.config.get(key) != first.config.get(key)]
        if odd:
            raise UsageError(
                f"cells {first.id} and {cell.id} differ in {', '.join(odd)} and cannot be trained together: "
                "leave these keys out of machine.stack.over"
            )


def _check_stackable(training: TrainingSettings, machine: Machine) -> None:
    elsewhere = machine.compile is True or machine.count > 1 or machine.data_workers > 0
    if elsewhere or training.callbacks or training.accumulate != 1 or isinstance(machine.micro_batch, int):
        raise UsageError(
            "cells that are trained together run uncompiled, without callbacks, in one process on one device, and take "
            "one whole batch a step: set machine.stack=null, or leave out machine.compile=true, machine.devices, "
            "machine.data_workers, machine.micro_batch, training.callbacks or training.accumulate"
        )


# A rehearsal.


class MadeUp(CounterBasedDataModule):
    """Batches of the shapes of other data, zeros for whole numbers, and numbers between 0 and 1; nothing is read."""

    splits = ("made_up",)

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

    def evaluation_batches(self, split: str) -> Iterator[Batch]:
        rows = len(tensors_of(self._batch)[0])
        chosen = torch.arange(getattr(self.data, "evaluation_batch_size", None) or rows) % rows
        yield map_tensors(lambda tensor: tensor[chosen], self._batch)


def _seconds_of_an_evaluation(built: BuiltCell) -> float:
    narrow, started = built.training.precision == "bf16-mixed", time.perf_counter()
    with torch.autocast(built.machine.device.type, torch.bfloat16, enabled=narrow):
        built.module.evaluate(built.data)  # ends with numbers, so the device has ended, too
    return time.perf_counter() - started
