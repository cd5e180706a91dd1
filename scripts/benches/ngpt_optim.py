"""A step of Adam that keeps rows at unit norm, against torch's fused AdamW alone and with a loop of projections.

The goal is a ratio to the first, which does less: 1.05 times its time on a GPU, 1.2 times on a CPU.  The relative error
is that of the parameters after a step, always against the loop.
"""

from collections.abc import Iterator
from typing import Any

import torch
from side_by_side import Comparison, relative_error, timed
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from paper_repro.training.optim import UnitAdamW, keep_unit_rows

NUMBERS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare nGPT's 0.5B on a GPU, two small ones on a CPU."""
    cpu = device.type == "cpu"
    sizes = [(256, 4, 4096), (512, 6, 4096)] if cpu else [(1024, 24, 32000)]
    goal, steps = (1 / 1.2, 5) if cpu else (1 / 1.05, 20)
    for width, layers, vocabulary in sizes:
        ours, alone, loop = (_parameters(width, layers, vocabulary, device) for _ in range(3))
        step = UnitAdamW(ours, **NUMBERS)
        others = {"fused AdamW alone": AdamW(alone, fused=True, **NUMBERS)}
        others["fused AdamW, then a loop of projections"] = projected = AdamW(loop, fused=True, **NUMBERS)
        keep_unit_rows(projected)
        step.step()
        projected.step()
        error = relative_error(_tensors(step), _tensors(projected))
        case = f"{sum(tensor.numel() for tensor in _tensors(step)) / 1e6:.1f}M parameters, D={width}, {layers} layers"
        for other, optimizer in others.items():
            target = goal if optimizer is not projected else None
            sides = step.step, optimizer.step, other
            yield timed(case, "ms per step", *sides, device, calls=steps, error=error, goal=target)


def _parameters(width: int, layers: int, vocabulary: int, device: torch.device) -> list[dict[str, object]]:
    """Build the groups of an nGPT: per layer seven matrices and five scale vectors; two tables, and the scale of
    logits.
    """
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int, scale: float = 1.0) -> nn.Parameter:
        return nn.Parameter(torch.randn(shape, generator=generator, device=device) * scale)

    hidden = 4 * width
    rows = layers * ([width] * 4 + [hidden] * 3) + [vocabulary] * 2
    matrices = [drawn(count, width, scale=width**-0.5) for count in rows]
    vectors = [drawn(count) for count in layers * ([width] * 3 + [hidden] * 2) + [vocabulary]]
    for parameter in (*matrices, *vectors):
        parameter.grad = torch.randn(parameter.shape, generator=generator, device=device) * 1e-3
    return [{"params": matrices, "unit_rows": True}, {"params": vectors}]


def _tensors(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
