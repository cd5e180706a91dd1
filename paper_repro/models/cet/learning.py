"""CET's reconstruction error has two ways to a gradient: Equilibrium Propagation, and backpropagation through steps.

The cost is C = sum of (y - x)^2 over an image's numbers, the mean over the batch is differentiated.  The paper reports
C / (number of numbers) and does not say which of the two nudges; divided, the force would drown in float32's rounding.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paper_repro.base.arguments import at_least, positive
from paper_repro.models.cet.energy import CETNudge, CETState
from paper_repro.models.cet.model import CET
from paper_repro.models.descent import Trajectory


@dataclass(frozen=True)
class Phases:
    """These settings say how long and how strongly a batch relaxes (section 3; appendix C).

    Raises:
        ValueError: a number of steps below 1, nudged steps below 2 (the first one moves y alone, so that only the
            decoder would learn), a beta that is not positive, or one at which -beta C is as steep as 1/2 |y|^2.
    """

    free_steps: int = 150
    nudged_steps: int = 5
    beta: float = 0.01
    step_size: float = 1.0

    def __post_init__(self) -> None:
        at_least("free_steps", self.free_steps)
        positive("step_size", self.step_size)
        if at_least("nudged_steps", self.nudged_steps) < 2:
            raise ValueError("nudged_steps=1 moves the image alone, and only the decoder would learn: give 2 or more")
        if not 0 < self.beta < 0.5:
            reason = "with -beta the energy has no minimum from 2 beta = 1 on"
            raise ValueError(f"beta must lie between 0 and 1/2, got {self.beta}: {reason}")


class Learned(NamedTuple):
    """The result of one batch, whose gradients lie in ``.grad``."""

    cost: Tensor
    """C of the free state, of the last state for backpropagation, (B,)."""
    free: Trajectory[CETState]
    """The free phase."""


@torch.no_grad()
def equilibrium_propagation(model: CET, masked: Tensor, images: Tensor, phases: Phases) -> Learned:
    """Add 1/B sum_b (dE/dtheta(s+_b) - dE/dtheta(s-_b)) / (2 beta) to ``.grad`` (equation 6); no graph is recorded.

    The free phase ends in s0; from there the phases with +beta and -beta relax as one batch of 2 B.

    Args:
        masked, images: xbar and x, (B, C, H, H).
    """
    clamped = model.clamp(masked)
    free = model.relax(model.first(clamped), clamped, phases.free_steps, phases.step_size)
    target = model.patches.blocks(images)
    both = type(clamped)(*(torch.cat([part, part]) for part in clamped))  # (2 B, N, P) and (2 B, N, D)
    signs = torch.cat([masked.new_ones(len(masked)), -masked.new_ones(len(masked))])  # (2 B,)
    start = CETState(*(torch.cat([part, part]) for part in free.state))
    nudge = CETNudge(torch.cat([target, target]), phases.beta * signs)
    nudged = model.relax(start, both, phases.nudged_steps, phases.step_size, nudge).state
    gradients = model.parameter_gradients(nudged, both, signs / (2 * phases.beta * len(masked)))
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name] if parameter.grad is None else parameter.grad.add_(gradients[name])
    return Learned(cost(free.state, target), free)


def truncated_backpropagation(model: CET, masked: Tensor, images: Tensor, phases: Phases) -> Learned:
    """Add the gradient of the mean cost after T1 + T2 steps, through the last T2 of them, to ``.grad`` (TBPTE)."""
    with torch.no_grad():
        clamped = model.clamp(masked)
        free = model.relax(model.first(clamped), clamped, phases.free_steps, phases.step_size)
    reached = _backpropagate(model, masked, images, free.state, phases.nudged_steps, phases.step_size)
    return Learned(reached, free)


def full_backpropagation(model: CET, masked: Tensor, images: Tensor, num_steps: int, step_size: float = 1.0) -> Tensor:
    """Add the gradient of the mean cost after ``num_steps`` steps to ``.grad``; returns the costs, (B,)."""
    return _backpropagate(model, masked, images, None, num_steps, step_size)


def cost(state: CETState, target: Tensor) -> Tensor:
    """Compute C, (B,), for a target in blocks, (B, H/s, H/s, C s^2)."""
    return (state.y - target).square().flatten(1).sum(1)


def _backpropagate(
    model: CET, masked: Tensor, images: Tensor, state: CETState | None, num_steps: int, step_size: float
) -> Tensor:
    with torch.enable_grad():
        clamped = model.clamp(masked)
        reached = model.relax(state or model.first(clamped), clamped, num_steps, step_size).state
        costs = cost(reached, model.patches.blocks(images))
        costs.mean().backward()
    return costs.detach()
