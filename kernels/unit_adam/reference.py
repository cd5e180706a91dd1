"""The definition: one Adam step of one tensor in plain PyTorch."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

Four = tuple[Tensor, Tensor, Tensor, Tensor]
"""Parameter, gradient, first moment, second moment."""


class Settings(NamedTuple):
    """What a step depends on beside its tensors."""

    step: float
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float

    @property
    def kept(self) -> float:
        """The part of a parameter that weight decay leaves."""
        return 1 - self.lr * self.weight_decay

    @property
    def size(self) -> float:
        """lr / (1 - b1^step)."""
        return self.lr / (1 - self.beta1**self.step)

    @property
    def root(self) -> float:
        """sqrt(1 - b2^step)."""
        return math.sqrt(1 - self.beta2**self.step)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return what numbers of ``dtype`` are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def adam_(four: Four, settings: Settings, unit_rows: bool) -> None:
    """See ``kernels.unit_adam.adam_``."""
    parameter, gradient, first, second = four
    stored = (parameter, first, second)
    dtype = wide(parameter.dtype)
    p, m, v = (tensor.to(dtype) for tensor in stored)
    g = gradient.to(dtype)
    p.mul_(settings.kept)
    m.lerp_(g, 1 - settings.beta1)
    v.mul_(settings.beta2).addcmul_(g, g, value=1 - settings.beta2)
    p.addcdiv_(m, v.sqrt().div_(settings.root).add_(settings.eps), value=-settings.size)  # (..., D)
    if unit_rows:
        unit_(p)
    for tensor, value in zip(stored, (p, m, v), strict=True):
        if value is not tensor:
            tensor.copy_(value)


def unit_(rows: Tensor) -> None:
    """Set x <- x / |x| over the last dimension."""
    rows.div_(torch.linalg.vector_norm(rows, dim=-1, keepdim=True))  # (..., rows, 1)
