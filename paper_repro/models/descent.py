"""Training, evaluation, generation and probes all go down an energy here: a step rule is applied S times.

A state is a tree of tensors: a tensor, or tuples, lists and dicts of them.  Legend: S steps, R recorded steps, and
``...`` for the shape of one tensor of a state.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_map

from paper_repro.base.errors import at_least

State = TypeVar("State")
StepRule = Callable[[State, int], State]
"""The next state from a state and the step's index from 0."""
Energy = Callable[[State], Any]
"""The energies of a state: a tree of tensors, for example one of shape (B,)."""
Change = Callable[[State, State], Tensor]
"""How much a step changed, from the state before and the state after it: a tensor of any shape, at least 0."""


@dataclass(frozen=True)
class Trajectory(Generic[State]):
    """The states and energies that a descent went through; what was not asked for is None."""

    state: State
    """The last state."""
    states: Any = None
    """The recorded states, a tree like the state whose tensors are (R, ...)."""
    energies: Any = None
    """The energies at the recorded steps, a tree whose tensors are (R, ...)."""
    change: Tensor | None = None
    """The change of the last step."""


def descend(
    step: StepRule[State],
    start: State,
    num_steps: int,
    *,
    energy: Energy[State] | None = None,
    energies_at: Collection[int] = (),
    states_at: Collection[int] = (),
    change: Change[State] | None = None,
) -> Trajectory[State]:
    """Apply ``step`` S times to ``start``: x_{s+1} = step(x_s, s).

    A rule may write its states into the same memory again: recorded states are copies.

    Args:
        energies_at, states_at: after which steps energies and states are recorded; 0 is the start.
        change: how much a step changed, measured after the last one.

    Raises:
        ValueError: a number of steps below 1, or energies to record without an ``energy``.
    """
    if energies_at and energy is None:
        raise ValueError("energies_at needs an energy: give energy=")
    states, energies = list[State](), list[Any]()
    before = state = start
    for taken, following in enumerate(chain([start], walk(step, start, num_steps))):
        before, state = state, following
        if taken in states_at:
            states.append(tree_map(torch.clone, state))
        if energy is not None and taken in energies_at:
            energies.append(energy(state))
    moved = None if change is None else change(before, state)
    return Trajectory(state, _stacked(states), _stacked(energies), moved)


def walk(step: StepRule[State], start: State, num_steps: int) -> Iterator[State]:
    """Yield the states x_1 ... x_S of a descent, each when it is asked for; arguments and errors as for ``descend``."""
    state = start
    for index in range(at_least("num_steps", num_steps)):
        state = step(state, index)
        yield state


def _stacked(trees: list[Any]) -> Any:
    """Stack trees of tensors (...) into one tree of tensors (R, ...); None where there is no tree."""
    return tree_map(lambda *parts: torch.stack(parts), *trees) if trees else None  # (R, ...) each


@torch.compiler.disable
def computed_again(function: Callable[[Tensor], Any], x: Tensor, weights: Sequence[Tensor]) -> Any:
    """Return function(x), tensors, without its graph: the backward pass computes it again, for gradients by x and by
    the weights that it reads.

    ``torch.utils.checkpoint`` does not take a function that has a gradient of ``torch.func`` inside.
    """
    return _Again.apply(function, x, *weights)


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Any], x: Tensor, *weights: Tensor) -> Any:
        device = x.device.type
        ctx.function = function
        casts = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        ctx.half = torch.get_autocast_dtype(device) if casts else None
        ctx.save_for_backward(x, *weights)
        return function(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        given, needed = [x.detach().requires_grad_(), *weights], ctx.needs_input_grad[1:]
        with torch.enable_grad(), torch.autocast(x.device.type, ctx.half) if ctx.half else nullcontext():
            found = ctx.function(given[0])
        wanted = [one for one, wants in zip(given, needed, strict=True) if wants]
        parts = iter(torch.autograd.grad(found, wanted, gradients, allow_unused=True))
        return None, *(next(parts) if wants else None for wants in needed)
