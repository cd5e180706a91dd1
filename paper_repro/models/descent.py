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
from torch.utils._pytree import tree_leaves, tree_map

from paper_repro.base.errors import at_least

State = TypeVar("State")
StepRule = Callable[[State, int, Any], State]
"""The next state from a state, the step's index from 0, and the step's draws (None where none were given)."""
Energy = Callable[[State], Any]
"""The energies of a state: a tree of tensors, for example one of shape (B,)."""
Change = Callable[[State, State], Tensor]
"""How much a step changed, from the state before and the state after it: a tensor of any shape, at least 0."""


@dataclass(frozen=True)
class Trajectory(Generic[State]):
    """The states and energies that a descent went through; what was not asked for is None."""

    state: State
    """The last state."""
    num_steps: int
    """The steps that were taken: fewer than asked for where a tolerance stopped the descent."""
    states: Any = None
    """The recorded states, a tree like the state whose tensors are (R, ...)."""
    energies: Any = None
    """The energies at the recorded steps, a tree whose tensors are (R, ...)."""
    change: Tensor | None = None
    """The change of the last step."""
    changes: Tensor | None = None
    """The changes of those steps, from the first on, after which energies were recorded, (R, ...)."""


def descend(
    step: StepRule[State],
    start: State,
    num_steps: int,
    *,
    energy: Energy[State] | None = None,
    energies_at: Collection[int] = (),
    states_at: Collection[int] = (),
    change: Change[State] | None = None,
    tolerance: float | None = None,
    patience: int = 1,
    draws: Any = None,
) -> Trajectory[State]:
    """Apply ``step`` S times to ``start``: x_{s+1} = step(x_s, s, draws_s).

    A rule may write its states into the same memory again: recorded states are copies.

    Args:
        energies_at, states_at: after which steps energies and states are recorded; 0 is the start.
        change: how much a step changed, measured where energies are recorded and after the last step, with a tolerance
            after every step.  Without it, a tolerance looks at |E' - E| / max(|E|, |E'|) of one tensor of energies.
        tolerance, patience: stop where no number of the change exceeds it for so many steps in a row; None never stops.
            It reads values, so it cannot be used under ``torch.func.vmap``.
        draws: random tensors for a rule that needs them: a tree of tensors (S, ...), of which step s gets (...), or a
            function of the step's index, such as ``normal_draws``.

    Raises:
        ValueError: a number of steps or a patience below 1, a tolerance that is negative or has nothing to look at,
            energies to record without an ``energy``, or draws for fewer than S steps.
    """
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must be None or at least 0, got {tolerance!r}")
    if energy is None and (energies_at or (tolerance is not None and change is None)):
        raise ValueError("energies_at, and a tolerance without change=, need an energy: give energy=")
    at_least("patience", patience)
    by_energy = tolerance is not None and change is None
    states, energies, changes = list[State](), list[Any](), list[Tensor]()
    before, state, taken, calm = start, start, 0, 0
    found: Any = None
    moved: Tensor | None = None
    for taken, state in enumerate(chain([start], walk(step, start, num_steps, draws))):
        recorded, found_before = taken in energies_at, found
        if taken in states_at:
            states.append(tree_map(torch.clone, state))
        if energy is not None and (recorded or by_energy):
            found = energy(state)
        if recorded:
            energies.append(found)
        if taken:
            if by_energy:
                moved = _relative(found_before, found)
            elif change is not None and (recorded or taken == num_steps or tolerance is not None):
                moved = change(before, state)
            if recorded and moved is not None:
                changes.append(moved)
            if tolerance is not None and moved is not None:
                calm = calm + 1 if bool((moved <= tolerance).all()) else 0
            if calm >= patience:
                break
        before = state
    changed = torch.stack(changes) if changes else None  # (R, ...)
    return Trajectory(state, taken, _stacked(states), _stacked(energies), moved, changed)


def walk(step: StepRule[State], start: State, num_steps: int, draws: Any = None) -> Iterator[State]:
    """Yield the states x_1 ... x_S of a descent, each when it is asked for; arguments and errors as for ``descend``."""
    at_least("num_steps", num_steps)
    _check_draws(draws, num_steps)
    state = start
    for index in range(num_steps):
        state = step(state, index, _drawn(draws, index))
        yield state


def normal_draws(like: State) -> Callable[[int], State]:
    """Return draws for ``descend``: standard normal numbers, shaped like a state, anew for every step."""

    def draw(index: int) -> State:
        found: State = tree_map(lambda x: torch.randn(x.shape, dtype=x.dtype, device=x.device), like)
        return found

    return draw


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


def _relative(before: Any, after: Any) -> Tensor:
    """Compute |E' - E| / max(|E|, |E'|), 0 where both energies are 0."""
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        raise ValueError("a tolerance without change= looks at one tensor of energies: give change=, or such an energy")
    size = torch.maximum(before.abs(), after.abs())
    return (after - before).abs() / size.clamp(min=torch.finfo(size.dtype).tiny)


def _stacked(trees: list[Any]) -> Any:
    """Stack trees of tensors (...) into one tree of tensors (R, ...); None where there is no tree."""
    return tree_map(lambda *parts: torch.stack(parts), *trees) if trees else None  # (R, ...) each


def _drawn(draws: Any, index: int) -> Any:
    if draws is None or callable(draws):
        return None if draws is None else draws(index)
    return tree_map(lambda part: part[index], draws)  # (S, ...) -> (...)


def _check_draws(draws: Any, num_steps: int) -> None:
    if draws is not None and not callable(draws):
        least = min(len(part) for part in tree_leaves(draws))
        if least < num_steps:
            raise ValueError(f"draws are for {least} steps and the descent has {num_steps}: draw for every step")
