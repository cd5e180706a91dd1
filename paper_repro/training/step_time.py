"""Tasks that measure a training step of several models: its time (nGPT, appendix A.4), its memory and its first step
(EBT, table D.5), and its FLOPs (EBT, table D.2).

Nothing else should run while times are taken.  The models take turns, so that what slows the machine slows all.
"""

import functools
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paper_repro.base.configs import TARGET
from paper_repro.base.errors import UsageError, at_least, one_of, positive
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import FINISHED, OUT_OF_MEMORY, Cell, Cost, Outcome, Report, StopRequestedError, Task
from paper_repro.kernels.preferences import prefer
from paper_repro.training import counting
from paper_repro.training.build import build_module
from paper_repro.training.counting import LAYER_NORM_PER_ELEMENT, count_flops, num_parameters, peak_bytes
from paper_repro.training.machine import Machine, forget_peak_memory, peak_memory_mib, settings
from paper_repro.training.optim import keep_unit_rows
from paper_repro.training.steps import Graphs

PRECISIONS = ("32-true", "bf16-mixed")
CONSTANT = "paper_repro.training.schedules.Constant"
BATCHES = 8
"""Different ones that the steps read in turn."""
PAIRWISE = (counting.ATEN.bmm, counting.ATEN.baddbmm)
"""Products of two activations, those of attention: a product with a weight has no batch of matrices."""
DIGITS = 3
"""How many digits of a total a framework's summary shows."""


@dataclass(frozen=True)
class StepSettings:
    """The ``step`` section of a config."""

    window: int
    batch_size: int
    accumulate: int
    clip_norm: float
    precision: str
    compile: bool
    rounds: int
    unmeasured_rounds: int

    def __post_init__(self) -> None:
        for name in ("window", "batch_size", "accumulate", "rounds", "unmeasured_rounds"):
            at_least(name, getattr(self, name))
        positive("clip_norm", self.clip_norm)
        one_of("precision", self.precision, PRECISIONS)


class StepTime(Task):
    """Times the steps of a config's ``models``, the first of which is the baseline, on random token ids.

    A model is trained by ``module``, or, where ``modules`` names it, by a module of its own.  A step is ``accumulate``
    times forward and backward, then clipping, the optimiser's step and the projection to unit rows.

    Metrics: ``seconds_<model>``, the median over rounds, and for all but the first ``ratio_<model>``, the median of the
    ratio to the baseline within a round, and ``spread_<model>``, the range of that ratio over rounds relative to it.
    """

    check_devices = staticmethod(counting.check_devices)

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        machine = Machine.of(cells[0].machine)
        with settings(machine):
            return [self.measured(cell.config, machine.device, report) for cell in cells]

    def measured(self, config: Mapping[str, Any], device: torch.device, report: Report) -> Outcome:
        start = time.perf_counter()
        forget_peak_memory(device)
        try:
            found = _measured(config, device, report)
        except torch.OutOfMemoryError:
            note = f"out of memory on {device}: lower step.batch_size and raise step.accumulate as much"
            return Outcome(OUT_OF_MEMORY, peak_memory_mib=peak_memory_mib(device), note=note)
        seconds = time.perf_counter() - start
        return Outcome(FINISHED, metrics=found, seconds=seconds, peak_memory_mib=peak_memory_mib(device))

    def cost(self, config: Mapping[str, Any]) -> Cost:
        """Return what a round costs, in which each model makes one step."""
        step = _settings(config)
        steppers = [build_stepper(own, step, torch.device("meta")) for own in each_model(config).values()]
        parameters = sum(num_parameters(own.module) for own in steppers)
        with torch.no_grad():
            forward = count_flops(lambda: [own.loss() for own in steppers], layer_norm=2 * LAYER_NORM_PER_ELEMENT)
        return Cost(
            parameters=parameters,
            multiply_adds=forward // 2,
            step_flops=count_flops(lambda: [own.gradients() for own in steppers]),  # an optimiser has no products
            steps=step.unmeasured_rounds + step.rounds,
            memory_bytes=counting.BYTES_PER_PARAMETER * parameters + max(peak_bytes(own.gradients) for own in steppers),
        )


def each_model(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the config of each model, with its own module."""
    modules = config.get("modules") or {}
    return {
        name: {**config, "model": node, "module": modules.get(name) or config["module"]}
        for name, node in config["models"].items()
    }


def _settings(config: Mapping[str, Any]) -> StepSettings:
    try:
        return StepSettings(**config["step"])
    except (TypeError, ValueError) as error:
        raise UsageError(f"step: {error}") from error


def _measured(config: Mapping[str, Any], device: torch.device, report: Report) -> dict[str, float]:
    step = _settings(config)
    works = {name: build_stepper(own, step, device) for name, own in each_model(config).items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    total = step.unmeasured_rounds + step.rounds
    for number in range(total):
        for name, work in works.items():
            seconds, loss = _timed(work, device)
            if number >= step.unmeasured_rounds:
                times[name].append(seconds)
        report.progress(number + 1, total, loss)
        report.saves = False  # it could not go on with times of another process
        if report.stop_requested:
            raise StopRequestedError
    found = {f"seconds_{name}": statistics.median(own) for name, own in times.items()}
    baseline, *others = times
    for name in others:
        ratios = [own / other for own, other in zip(times[name], times[baseline], strict=True)]
        found[f"ratio_{name}"] = middle = statistics.median(ratios)
        found[f"spread_{name}"] = (max(ratios) - min(ratios)) / middle
    return found


def _timed(stepper: "Stepper", device: torch.device) -> tuple[float, float]:
    """Return the seconds and the loss of a step."""
    wait(device)
    start = time.perf_counter()
    loss = stepper.step()
    wait(device)
    return time.perf_counter() - start, float(loss)


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
        total = self.gradients()
        nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total


def build_stepper(config: Mapping[str, Any], step: StepSettings, device: torch.device) -> Stepper:
    """Build the model of a config with its optimiser, to train on random token ids."""
    with torch.device("meta") if device.type == "meta" else nullcontext():
        module = build_module({**config, "schedule": {TARGET: CONSTANT}}).to(device)
    machine = Machine.of(config.get("machine") or {})
    if machine.graphs and device.type == "cuda":
        module.step_by(None, functools.partial(Graphs, constants=module.constants, must=machine.cuda_graph is True))
    generator = torch.Generator().manual_seed(mix(int(config["seed"]), "step time"))
    shape = (BATCHES, step.batch_size, step.window + 1)
    ids = torch.randint(module.model.vocabulary_size, shape, generator=generator).to(device)
    return Stepper(module, cycle((rows[:, :-1], rows[:, 1:]) for rows in ids), step, device)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class StepCost(StepTime):
    """Times steps as ``StepTime`` does, and measures each model's first step and its memory by itself.

    Further metrics: ``throughput_<model>``, steps per second; ``first_<model>``, the seconds of the first step of a new
    model, in a process in which another one has made a step; ``memory_<model>``, the bytes by which a forward and a
    backward pass raise what is allocated; ``first_ratio_<model>`` and ``memory_ratio_<model>``, over the first model's.
    """

    def measured(self, config: Mapping[str, Any], device: torch.device, report: Report) -> Outcome:
        outcome = super().measured(config, device, report)
        if outcome.status != FINISHED:
            return outcome
        step, models, found = _settings(config), each_model(config), outcome.metrics
        for name, own in models.items():
            stepper = build_stepper(own, step, device)
            found[f"first_{name}"], _ = _timed(stepper, device)
            found[f"memory_{name}"] = added_memory(stepper, device)
            found[f"throughput_{name}"] = 1 / found[f"seconds_{name}"]
        baseline, *others = models
        for name in others:
            for kind in ("first", "memory"):
                found[f"{kind}_ratio_{name}"] = found[f"{kind}_{name}"] / found[f"{kind}_{baseline}"]
        return outcome


def added_memory(stepper: Stepper, device: torch.device) -> float:
    """Return the bytes by which forward and backward passes raise what is allocated, at their peak."""
    if device.type != "cuda":
        return peak_bytes(stepper.gradients)
    wait(device)
    before = torch.cuda.memory_allocated(device)
    forget_peak_memory(device)
    stepper.gradients()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before


class StepFlops(Task):
    """Counts ``model`` and a training step of it by ``module``.

    * ``parameters``: without the children in ``tables`` and in ``left_out``; ``parameters_total``: all.
    * ``parameters_rebuilt``: the total, cut to three digits, less the ``tables``.

    and for each of the ``ways``, a mapping from names to keys of ``model`` and their values:

    * ``flops_<way>``: FLOPs of a step for one sequence of ``data.window`` tokens; ``ratio_<way>``: over the baseline's.
    * ``weights_<way>``: the same ratio, of the products with weights alone, at a vocabulary of one token.

    FLOPs are those of the matrix products of the ops' definitions, two for each multiply-add.  ``baseline`` has a model
    and a module.
    """

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        config = cell.config
        found, baseline = parameters(config), count({**config, **config["baseline"]})
        ratios: dict[str, float] = {}
        for name, changes in config["ways"].items():
            own = count({**config, "model": {**config["model"], **changes}})
            ratios[f"flops_{name}"] = own.whole
            ratios[f"ratio_{name}"] = own.whole / baseline.whole
            ratios[f"weights_{name}"] = own.weights / baseline.weights
        return Outcome(FINISHED, metrics={**found, **ratios}, parameters=found["parameters_total"])


class Flops(NamedTuple):
    whole: int
    weights: int
    """The part that is no product of two activations, at a vocabulary of one token."""


def parameters(config: Mapping[str, Any]) -> dict[str, int]:
    """Count the parameters of ``model`` in the ways of ``StepFlops``."""
    with torch.device("meta"):
        model = build_module(config).model
    total, without = num_parameters(model), num_parameters(model, leave_out=config["tables"])
    unit = 10 ** (len(str(total)) - DIGITS)  # 44,810,880 becomes 44.8 million
    return {
        "parameters": num_parameters(model, leave_out=[*config["tables"], *config["left_out"]]),
        "parameters_total": total,
        "parameters_rebuilt": total // unit * unit - (total - without),
    }


def count(config: Mapping[str, Any]) -> Flops:
    """Count a training step on one sequence: every layer after the first takes what the second does."""

    def counted(**changes: int) -> Flops:
        parts = {key: config[key] for key in ("module", "optimizer", "schedule")}
        model = {**config["model"], **changes}
        return _count(json.dumps({**parts, "model": model, "seed": 0}, sort_keys=True), config["data"]["window"])

    further = config["model"]["num_layers"] - 1
    at_vocabulary = counted(num_layers=1)
    one, two = (counted(num_layers=layers, vocabulary_size=1) for layers in (1, 2))
    whole = at_vocabulary.whole + further * (two.whole - one.whole)
    return Flops(whole, one.weights + further * (two.weights - one.weights))


@functools.cache  # cells share a baseline
def _count(text: str, window: int) -> Flops:
    ids = torch.zeros(1, window, dtype=torch.long, device="meta")  # (1, T)
    with prefer(implementation="reference"):
        with torch.device("meta"):
            module = build_module(json.loads(text))
        found = counting.flops_by_operation(lambda: module.counted_step((ids, ids)))
    between = sum(flops for operation, flops in found.items() if operation in PAIRWISE)
    return Flops(sum(found.values()), sum(found.values()) - between)
