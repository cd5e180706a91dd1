"""Time of a training step of several models beside each other (nGPT, appendix A.4): a task that trains none to its end.

Nothing else should run meanwhile: a record made on a loaded machine says nothing, however many rounds it has.  Within a
cell the models take turns, so that what slows the machine for long slows all of them.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paper_repro.base.configs import TARGET
from paper_repro.base.errors import UsageError, at_least, one_of, positive
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import FINISHED, OUT_OF_MEMORY, Cell, Cost, Outcome, Report, StopRequestedError, Task
from paper_repro.training.build import build_module
from paper_repro.training.counting import (
    BYTES_PER_PARAMETER,
    LAYER_NORM_PER_ELEMENT,
    check_devices,
    count_flops,
    num_parameters,
    peak_bytes,
)
from paper_repro.training.machine import Machine, forget_peak_memory, peak_memory_mib, settings
from paper_repro.training.optim import keep_unit_rows

PRECISIONS = ("32-true", "bf16-mixed")
CONSTANT = "paper_repro.training.schedules.Constant"
BATCHES = 8
"""Different ones that the steps read in turn."""


@dataclass(frozen=True)
class StepSettings:
    """The ``step`` section of a config.

    Raises:
        ValueError: a number out of range, or an unknown precision.
    """

    window: int
    batch_size: int
    accumulate: int
    """Batches of an optimiser step."""
    clip_norm: float
    precision: str
    compile: bool
    """Whether the loss goes through torch.compile."""
    rounds: int
    """A step of every model each."""
    unmeasured_rounds: int
    """Before them: compilers and caches."""

    def __post_init__(self) -> None:
        for name in ("window", "batch_size", "accumulate", "rounds", "unmeasured_rounds"):
            at_least(name, getattr(self, name))
        positive("clip_norm", self.clip_norm)
        one_of("precision", self.precision, PRECISIONS)


class StepTime(Task):
    """Times the steps of a config's ``models``, the first of which is the baseline.

    A model is trained by ``module``, or, where ``modules`` names it, by a module of its own.  A step is ``accumulate``
    times forward and backward, then clipping, the optimiser's step and, for the groups that ask for it, the projection
    to unit rows: what training does, on random token ids.

    Metrics: ``seconds_<model>``, the median over rounds, and for all but the first ``ratio_<model>``, the median of the
    ratio to the baseline within a round, and ``spread_<model>``, the range of that ratio over rounds relative to it.
    """

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        """Return one outcome per cell; a cell that was interrupted is measured anew.

        Raises:
            StopRequestedError: between two rounds.
            UsageError: a config that cannot be run.
        """
        machine = Machine.of(cells[0].config.get("machine") or {})
        with settings(machine):
            return [_measure(cell.config, machine.device, report) for cell in cells]

    def cost(self, config: Mapping[str, Any]) -> Cost:
        """Return what a round costs, in which each model makes one step: the numbers are sums over the models."""
        step = _settings(config)
        steppers = [build_stepper(node, own, step, torch.device("meta")) for node, own in each_model(config).values()]
        parameters = sum(num_parameters(own.module) for own in steppers)
        with torch.no_grad():
            forward = count_flops(lambda: [own.loss() for own in steppers], layer_norm=2 * LAYER_NORM_PER_ELEMENT)
        return Cost(
            parameters=parameters,
            multiply_adds=forward // 2,
            step_flops=count_flops(lambda: [own.gradients() for own in steppers]),  # an optimiser has no products
            steps=step.unmeasured_rounds + step.rounds,
            memory_bytes=BYTES_PER_PARAMETER * parameters + max(peak_bytes(own.gradients) for own in steppers),
        )

    def check(self, config: Mapping[str, Any]) -> None:
        _settings(config)

    def check_devices(self, config: Mapping[str, Any]) -> None:
        check_devices(config)


def each_model(config: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return each model's node and the config that it is built from, with its own module."""
    modules = config.get("modules") or {}
    return {
        name: (node, {**config, "module": modules.get(name) or config["module"]})
        for name, node in config["models"].items()
    }


def _settings(config: Mapping[str, Any]) -> StepSettings:
    try:
        return StepSettings(**config["step"])
    except (TypeError, ValueError) as error:
        raise UsageError(f"step: {error}") from error


def _measure(config: Mapping[str, Any], device: torch.device, report: Report) -> Outcome:
    step = _settings(config)
    forget_peak_memory(device)
    start = time.perf_counter()
    try:
        times = _times(config, step, device, report)
    except torch.OutOfMemoryError:
        note = f"out of memory on {device}: lower step.batch_size and raise step.accumulate as much"
        return Outcome(OUT_OF_MEMORY, peak_memory_mib=peak_memory_mib(device), note=note)
    seconds, peak = time.perf_counter() - start, peak_memory_mib(device)
    return Outcome(FINISHED, metrics=metrics(times), seconds=seconds, peak_memory_mib=peak)


def metrics(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Compute the metrics of ``StepTime`` from the seconds of each model's step in each round."""
    found = {f"seconds_{name}": statistics.median(own) for name, own in times.items()}
    baseline = next(iter(times.values()))
    for name in list(times)[1:]:
        ratios = [own / other for own, other in zip(times[name], baseline, strict=True)]
        found[f"ratio_{name}"] = middle = statistics.median(ratios)
        found[f"spread_{name}"] = (max(ratios) - min(ratios)) / middle
    return found


def _times(
    config: Mapping[str, Any], step: StepSettings, device: torch.device, report: Report
) -> dict[str, list[float]]:
    works = {name: build_stepper(node, own, step, device) for name, (node, own) in each_model(config).items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    total = step.unmeasured_rounds + step.rounds
    for number in range(total):
        loss = 0.0
        for name, work in works.items():
            wait(device)
            start = time.perf_counter()
            found = work.step()
            wait(device)
            if number >= step.unmeasured_rounds:
                times[name].append(time.perf_counter() - start)
            loss = float(found)
        report.progress(number + 1, total, loss)
        report.saves = False  # it could not go on with times of another process
        if report.stop_requested:
            raise StopRequestedError
    return times


class Stepper:
    """One model with its optimiser and its batches."""

    def __init__(self, module: Any, batches: Iterator[Any], step: StepSettings, device: torch.device) -> None:
        self.module, self.batches, self.settings, self.device = module, batches, step, device
        self.optimizer = module.optimizer(module.groups_and_schedules()[0])
        keep_unit_rows(self.optimizer)
        self.parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.drawn = 0
        if step.compile and device.type != "meta":
            module.compile_loss()

    def loss(self) -> Tensor:
        """Return the loss of the next batch, with fresh draws; nothing is carried from step to step."""
        batch = next(self.batches)
        draws, carry = self.module.draws_of(batch, self.drawn, 0, self.device), self.module.initial_carry(batch)
        self.drawn += 1
        # Tensors on the meta device have no autocast of their own, nor do their shapes depend on one.
        narrow = self.settings.precision == "bf16-mixed" and self.device.type != "meta"
        with torch.autocast(self.device.type, torch.bfloat16) if narrow else nullcontext():
            found: Tensor = self.module.step_loss(batch, draws, carry)[0]
        return found

    def gradients(self) -> Tensor:
        """Add up the gradients of a step's batches, and return the mean loss."""
        total = torch.zeros((), device=self.device)
        for _ in range(self.settings.accumulate):
            loss = self.loss() / self.settings.accumulate
            loss.backward()
            total += loss.detach()
        return total

    def step(self) -> Tensor:
        """Make one training step, and return the mean loss before it."""
        total = self.gradients()
        nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total


def build_stepper(
    node: Mapping[str, Any],
    config: Mapping[str, Any],
    step: StepSettings,
    device: torch.device,
    batches: Iterator[Any] | None = None,
) -> Stepper:
    """Build a model with its optimiser; the meta device builds it without numbers.

    Args:
        batches: what the steps read, on that device; None: random token ids.
    """
    with torch.device("meta") if device.type == "meta" else nullcontext():
        module = build_module({**config, "model": node, "schedule": {TARGET: CONSTANT}}).to(device)
    if batches is None:
        batches = _batches(module.model.vocabulary_size, int(config["seed"]), step, device)
    return Stepper(module, batches, step, device)


def _batches(vocabulary: int, seed: int, step: StepSettings, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(mix(seed, "step time"))
    shape = (BATCHES, step.batch_size, step.window + 1)
    ids = torch.randint(vocabulary, shape, generator=generator).to(device)
    return cycle((rows[:, :-1], rows[:, 1:]) for rows in ids)


def wait(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
