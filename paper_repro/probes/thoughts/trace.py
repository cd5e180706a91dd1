"""One context thought about by an EBT, step by step: energies of every sample, and the predictions that are looked at.

Legend: N samples, T tokens or cells that are thought about, K of them kept, V vocabulary, S steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paper_repro.base.errors import at_least
from paper_repro.base.identity import mix
from paper_repro.models.ebt import EBT, Considered, EnergyModel, ThinkingSettings, landscape_of_step, think


@dataclass(frozen=True)
class Manner:
    """How a context is thought about.

    Raises:
        ValueError: no sample, or a step size that is not positive.
    """

    num_samples: int = 1
    """N."""
    settings: ThinkingSettings = field(default_factory=ThinkingSettings)
    """Rule and noise; the rest is not read."""
    step_size: float | None = None
    """Alpha; None: the model's own."""
    seed: int = 0
    """The seed of the first predictions and of the noise.  A sample's numbers do not depend on how many there are."""

    def __post_init__(self) -> None:
        at_least("num_samples", self.num_samples)
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise ValueError(f"step_size must be a positive finite number, got {self.step_size!r}")


@dataclass(frozen=True)
class Trace:
    """What was thought of one context."""

    energies: Tensor
    """After 0, 1, ..., S steps, (S + 1, N, T)."""
    kept: Tensor
    """Logits of the last K places after 0, 1, ..., S steps, (S + 1, N, K, V)."""
    last: Considered
    """After S steps; its B is 1."""
    num_landscapes: int = 1
    """L."""

    @property
    def num_steps(self) -> int:
        return len(self.energies) - 1

    @property
    def num_evaluations(self) -> int:
        """The number of function evaluations, see ``num_evaluations``."""
        return num_evaluations(self.energies.shape[1], self.num_steps)

    @property
    def landscapes(self) -> list[int]:
        """The landscape, from 0 on, on which the energies after 0, 1, ..., S steps lie: that of the next step."""
        steps = range(self.num_steps)
        following = [landscape_of_step(index, self.num_steps, self.num_landscapes) for index in steps]
        return [*following, self.num_landscapes - 1]


def num_evaluations(num_samples: int, num_steps: int) -> int:
    """Return N S + 1: a gradient for each sample and step, and one pass, with all samples, that compares them."""
    return num_samples * num_steps + 1


@torch.no_grad()
def trace(
    model: EnergyModel,
    ids: Tensor,
    num_steps: int,
    manner: Manner,
    last: int | None = None,
    kept: int = 0,
    name: str = "start",
) -> Trace:
    """Think about ids, (1, T), for S steps.

    Args:
        last: of a text, only what follows the last so many tokens is thought about; None: all T places.
        kept: K.
        name: gives other random numbers for another name.

    Raises:
        ValueError: as ``models.ebt.think``, or energies that cease to be finite.
    """
    energies_of = model.energies(ids, last) if isinstance(model, EBT) else model.energies(ids)
    places = ids.shape[1] if last is None else last
    shape = (places, model.state_size)  # (T, V)
    alpha = model.step_size

    def drawn(index: int) -> Tensor:
        seeds = (mix(manner.seed, name, index, sample) for sample in range(manner.num_samples))
        each = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return torch.stack(each).to(alpha)  # (N, T, V)

    noise: Callable[[int], Tensor] | None = (lambda index: drawn(index + 1)) if manner.settings.noise else None
    settings = replace(manner.settings, num_steps=num_steps, most_steps=None)
    start = drawn(0)[:, None]  # (N, 1, T, V)
    energies, states = [], []
    for considered in think(model, ids, start, num_steps, settings, manner.step_size, noise, energies_of):
        energies.append(considered.energies[:, 0])  # (N, T)
        states.append(considered.predictions[:, 0, places - kept :])  # (N, K, V)
        if not bool(torch.isfinite(energies[-1]).all()):
            raise ValueError(f"the energy is not finite after {len(energies) - 1} steps: take a smaller step size")
    return Trace(torch.stack(energies), torch.stack(states), considered, model.num_landscapes)
