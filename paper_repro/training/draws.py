"""The random tensors of a training step as data: a module declares them, the trainer draws them.

Drawn ahead of the loss, they can be stacked for many models under ``vmap``, where a loss cannot draw by itself.  Every
tensor has a random generator of its own, seeded from the cell's seed, the tensor's name, the optimiser step and the
slot (the number of the batch within the step).  A resumed run therefore draws what an uninterrupted one draws, and it
does not matter which device computes which slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paper_repro.base.identity import mix


class Distribution(Protocol):
    """The shape and the distribution of one random tensor; shape () is one number for the whole batch."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""

    def sample(self, device: torch.device, generator: torch.Generator | None) -> Tensor:
        """Draw the tensor, of ``shape``, on ``device``."""


@dataclass(frozen=True)
class Normal:
    """Independent numbers of mean 0 and variance 1, float32."""

    shape: tuple[int, ...] = ()

    def sample(self, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.randn(self.shape, device=device, generator=generator, dtype=torch.float32)


@dataclass(frozen=True)
class Uniform:
    """Independent numbers, uniform in [low, high), float32."""

    shape: tuple[int, ...] = ()
    low: float = 0.0
    high: float = 1.0

    def sample(self, device: torch.device, generator: torch.Generator | None) -> Tensor:
        found = torch.rand(self.shape, device=device, generator=generator, dtype=torch.float32)
        return self.low + (self.high - self.low) * found


@dataclass(frozen=True)
class Integers:
    """Independent whole numbers, uniform in low, ..., high (both included), int64."""

    low: int
    high: int
    shape: tuple[int, ...] = ()

    def sample(self, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.randint(self.low, self.high + 1, self.shape, device=device, generator=generator)


def draw(
    declared: Mapping[str, Distribution], device: torch.device, seed: int, step: int, slot: int
) -> dict[str, Tensor]:
    """Draw the declared tensors of batch ``slot`` of optimiser step ``step``, by name.

    The numbers depend on ``seed``, name, step, slot and the type of the device (a GPU has another generator than a
    CPU).  On the meta device the tensors have shapes and types only.
    """
    found = {}
    for name, distribution in declared.items():
        generator = None
        if device.type != "meta":
            generator = torch.Generator(device).manual_seed(mix(seed, "draw", name, step, slot))
        found[name] = distribution.sample(device, generator)
    return found
