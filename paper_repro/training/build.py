"""From one cell's resolved config to what is trained."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import lightning as L
import torch
from torch import nn
from torch.optim import Optimizer

from paper_repro.base.configs import TARGET, instantiate, locate, require
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import mix, today
from paper_repro.cells.planned import TrainingSettings, read_training
from paper_repro.cells.tasks import Cell, Findings, Task, weights_of
from paper_repro.datamodules.counter_based import CounterBasedDataModule, data_of
from paper_repro.training import checkpoints
from paper_repro.training.machine import Machine
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Schedule

KINDS: dict[str, tuple[type, str]] = {
    "module": (PaperModule, "a PaperModule"),
    "model": (nn.Module, "an nn.Module"),
    "data": (CounterBasedDataModule, "a CounterBasedDataModule"),
    "optimizer": (Optimizer, "an Optimizer"),
    "schedule": (Schedule, "a Schedule, a class that has factor()"),
}
"""What the ``_target_`` of each section builds."""


@runtime_checkable
class Probe(Protocol):
    """A measurement of a trained model beyond its losses; a config lists its probes under ``probes``.

    The module is in evaluation mode, and gradients are off.  A probe seeds its generators with ``mix(seed, ...)``, and
    leaves module and data as it found them.  It may have ``check(module, data)``, called before training with a module
    that may be on the meta device, which raises UsageError where these could not be measured.
    """

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings: ...


@dataclass
class BuiltCell:
    cell: Cell
    module: PaperModule
    data: CounterBasedDataModule
    training: TrainingSettings
    machine: Machine
    probes: dict[str, Probe]


def build(cell: Cell) -> BuiltCell:
    """Build a cell's module, data and probes; UsageError: the config or a probe refuses something."""
    config = cell.config
    for section in (*KINDS, "training", "seed"):
        if section not in config:
            raise UsageError(f"cell {cell.id}: the config has no section {section!r}, which training needs")
    _check_targets(config)
    training, machine = read_training(config["training"]), Machine.of(config.get("machine") or {})
    module = build_module(config)
    data = data_of(config)
    module.shares_rows = data.whole_batches = machine.shares_rows(training.accumulate)
    data.workers = machine.data_workers
    probes: dict[str, Probe] = {name: instantiate(node) for name, node in _wanted(config).items()}
    for probe in probes.values():
        if hasattr(probe, "check"):
            probe.check(module, data)
    return BuiltCell(cell, module, data, training, machine, probes)


def rebuild(folder: Path, cell: Cell, probes: Sequence[str] = ()) -> BuiltCell:
    """Return the cell built anew with the weights in ``folder`` and the probes of these names; in evaluation mode.

    Its config may be that of an older record (``base.identity.today``).  UsageError: there are no weights, or they are
    damaged or another model's.
    """
    weights = weights_of(folder)
    config = today(cell.config)
    wanted = {name: (config.get("probes") or {})[name] for name in probes}
    built = build(Cell(cell.id, {**config, "probes": wanted}))
    checkpoints.load_weights(weights, built.module, cell.id)
    built.module.to(built.machine.device).eval()
    return built


def build_module(config: Mapping[str, Any]) -> PaperModule:
    """Build a config's module, its model initialised under ``mix(seed, "init")``."""
    parts = {name: config[name] for name in ("model", "optimizer", "schedule")}
    torch.manual_seed(mix(int(config["seed"]), "init"))
    model = instantiate(config["model"])
    # Built through a partial: given as keywords, hydra would turn the schedule, a dataclass, into a dict.
    make = instantiate({**config["module"], "_partial_": True})
    optimizer = optimizer_of(config, Machine.of(config.get("machine") or {}))
    schedule = instantiate(config["schedule"])
    try:
        module: PaperModule = make(model=model, optimizer=optimizer, schedule=schedule)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"module: {error}") from error
    module.seed = int(config["seed"])
    own = {key: value for key, value in config["module"].items() if key != TARGET}
    module.save_hyperparameters({**own, **parts, "seed": module.seed}, logger=False)  # for load_from_checkpoint
    return module


def optimizer_of(config: Mapping[str, Any], machine: Machine) -> Any:
    """Return what the ``optimizer`` section builds, ``fused`` as the machine section has it, where it can be."""
    found, takes = instantiate(config["optimizer"]), inspect.signature(locate(config["optimizer"][TARGET])).parameters
    chosen = machine.fused_optimizer is not None and "fused" in takes
    return functools.partial(found, fused=machine.fused_optimizer) if chosen else found


def check_window(built: BuiltCell) -> None:
    """Raise UsageError where the data's windows are longer than the model sees at once."""
    window, most = getattr(built.data, "window", 0), getattr(built.module.model, "block_length", None)
    if most is not None and window > most:
        raise UsageError(
            f"data.window={window} is longer than the {most} tokens that the model sees at once: "
            f"give model.block_length={window}, or shorter windows"
        )


def _check_targets(config: Mapping[str, Any]) -> None:
    """Check what each section's ``_target_`` builds before the first of them is built."""
    if "task" in config:
        require(config["task"], "task", Task, "a task, a class that has run()")
    for section, (kind, name) in KINDS.items():
        require(config[section], section, kind, name, nested=section == "model")
    for name, node in (config["training"].get("callbacks") or {}).items():
        require(node, f"training.callbacks.{name}", L.Callback, "a Callback of Lightning")
    for name, node in _wanted(config).items():
        require(node, f"probes.{name}", Probe, "a probe, a class that has measure()")


def _wanted(config: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): node for name, node in (config.get("probes") or {}).items() if node is not None}
