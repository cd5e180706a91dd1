"""What a cell costs before it is run: parameters, multiply-adds and memory, counted on the meta device."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Cell
from paper_repro.training.batches import map_tensors
from paper_repro.training.build import BuiltCell, build
from paper_repro.training.machine import Machine
from paper_repro.training.module import PaperModule

LAYER_NORM_PER_ELEMENT = 5
BYTES_PER_PARAMETER = 16
"""float32 weight, gradient and two moments."""


@dataclass(frozen=True)
class Cost:
    """Counts of one cell."""

    parameters: int
    multiply_adds: int
    """Of one forward pass of one batch: matrix products, and 5 per element of a LayerNorm (fvcore's convention)."""
    memory_bytes: int
    """Weights, gradients, Adam moments and what autograd keeps between forward and backward."""


def measure(config: Mapping[str, Any]) -> Cost:
    """Build the cell's module on the meta device and count.

    Raises:
        UsageError: as ``check``.
    """
    parts = check(config)
    module = parts.module
    batch = map_tensors(lambda tensor: tensor.to("meta"), parts.data.example_batch())
    memory = BYTES_PER_PARAMETER * parts.num_parameters + _activation_bytes(module, batch)
    return Cost(parts.num_parameters, multiply_adds(module, batch), memory)


def check(config: Mapping[str, Any]) -> BuiltCell:
    """The cell's parts, built on the meta device: what is wrong with a config is found before hours are spent on it.

    Raises:
        UsageError: a constructor refuses its arguments, or the optimiser its settings.
    """
    with torch.device("meta"):
        parts = build(Cell("plan", dict(config)))
    try:
        parts.module.optimizer(parts.module.parameter_groups())
    except (ValueError, TypeError) as error:
        raise UsageError(f"optimizer: {error}") from error
    return parts


def check_device(config: Mapping[str, Any]) -> None:
    """Raises UsageError if the cell asks for an accelerator that is not here."""
    _ = Machine.of(config.get("machine") or {}).device


def multiply_adds(module: PaperModule, batch: Any) -> int:
    """Multiply-adds of ``module.counted(batch)``.

    Matrix products count one per multiply-add; a LayerNorm counts 5 per element, as fvcore does (the convention of the
    FLOP column of CEM's Table 3); element-wise operations count nothing.
    """
    layer_norm = {torch.ops.aten.native_layer_norm: _layer_norm_flops}
    with FlopCounterMode(display=False, custom_mapping=layer_norm) as counter, torch.no_grad():
        module.counted(batch)
    return int(counter.get_total_flops()) // 2


def _layer_norm_flops(input_shape: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * LAYER_NORM_PER_ELEMENT * input_shape.numel()


def _activation_bytes(module: PaperModule, batch: Any) -> int:
    kept: dict[int, int] = {}
    own = {id(parameter) for parameter in module.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        base = tensor._base if tensor._base is not None else tensor
        if id(base) not in own:
            kept[id(base)] = base.numel() * base.element_size()
            alive.append(base)
        return tensor

    alive: list[Tensor] = []
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        module.counted(batch)
    return sum(kept.values())
