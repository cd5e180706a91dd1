"""What the training of a cell costs before it is run, counted on the meta device."""

from collections.abc import Mapping
from typing import Any

import torch

from paper_repro.base.configs import without_seeds
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import fingerprint
from paper_repro.cells.tasks import Cell, Cost
from paper_repro.kernels.preferences import prefer
from paper_repro.training.batches import map_tensors
from paper_repro.training.build import BuiltCell, build
from paper_repro.training.counting import count_flops, peak_bytes
from paper_repro.training.machine import Machine, check_precision

LAYER_NORM_PER_ELEMENT = 5
"""Multiply-adds of a LayerNorm, as fvcore counts them: the convention of the FLOP column of CEM's Table 3."""
BYTES_PER_PARAMETER = 12
"""The float32 weight and the two moments of Adam; the gradient is among the tensors of a step."""


def measure(config: Mapping[str, Any]) -> Cost:
    """Build the cell's module on the meta device, and count one forward pass and one training step of it.

    They are counted as the machine section wants them computed, but for CUDA graphs.  Configs that differ in seed,
    optimiser, schedule, probes or number of steps alone are counted once a process.

    Raises:
        UsageError: as ``check``.
    """
    built = check(config)
    shape = {key: without_seeds(config[key]) for key in ("model", "module", "data")}
    known = fingerprint([shape, built.machine.implementation, built.machine.recompute])
    if known not in _COUNTED:
        _COUNTED[known] = _count(built)
    forward, step, peak = _COUNTED[known]
    parameters = built.num_parameters
    return Cost(
        parameters=parameters,
        multiply_adds=forward // 2,
        step_flops=built.training.accumulate * step,
        steps=built.training.steps,
        memory_bytes=BYTES_PER_PARAMETER * parameters + peak,
    )


_COUNTED: dict[str, tuple[int, int, int]] = {}


def _count(built: BuiltCell) -> tuple[int, int, int]:
    """Return FLOPs of a forward pass, FLOPs of the step of one batch, and the most bytes that live in it."""
    module = built.module
    batch = map_tensors(lambda tensor: tensor.to("meta"), built.data.example_batch())
    with prefer(built.machine.implementation, built.machine.recompute):
        with torch.no_grad():
            forward = count_flops(lambda: module.counted(batch), layer_norm=2 * LAYER_NORM_PER_ELEMENT)
        peaks: list[int] = []
        with torch.enable_grad():
            step = count_flops(lambda: peaks.append(peak_bytes(lambda: module.counted_step(batch))))
            (peak,) = peaks
    return forward, step, peak


def check(config: Mapping[str, Any]) -> BuiltCell:
    """Return the cell, built on the meta device, so that a faulty config is found before hours are spent on it.

    Raises:
        UsageError: a constructor refuses its arguments, or the optimiser its settings.
    """
    with torch.device("meta"):
        built = build(Cell("plan", dict(config)))
    try:
        built.module.optimizer(built.module.groups_and_schedules()[0])
    except (ValueError, TypeError) as error:
        raise UsageError(f"optimizer: {error}") from error
    return built


def check_devices(config: Mapping[str, Any]) -> None:
    """Raise UsageError if the cell asks for an accelerator that is not here, or for a precision that it lacks."""
    device = Machine.of(config.get("machine") or {}).device
    check_precision(str((config.get("training") or {}).get("precision")), device)
