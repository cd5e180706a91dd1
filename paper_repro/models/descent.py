"""Training, evaluation, generation and probes all go down an energy here: a step rule is applied S times.

A state is a tree of tensors: a tensor, or tuples, lists and dicts of them.  Legend: S steps, R recorded steps, and
``...`` for the shape of one tensor of a state.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
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
    create_graph: bool | None = None,
) -> Trajectory[State]:
    """Apply ``step`` S times to ``start``: x_{s+1} = step(x_s, s, draws_s).

    A rule may be any function.  ``GradientStep`` is the one that takes the gradient of an energy by autograd; models
    bring rules in closed form and fused ones.  A rule may write its states into the same memory again: recorded states
    are copies.

    Args:
        step: the rule.
        start: x_0.
        num_steps: S.
        energy: what is recorded as the energy of a state.
        energies_at, states_at: after which steps energies and states are recorded; 0 is the start and
            ``range(S + 1)`` is everywhere.  A descent that stops early records what it reached.
        change: how much a step changed.  Without it, a tolerance looks at |E' - E| / max(|E|, |E'|), for which
            ``energy`` must give one tensor.  With a tolerance it is measured after every step, without one after the
            last step and where energies are recorded.
        tolerance: stop where no number of the change exceeds it any more; None never stops.  It reads values, so it
            cannot be used under ``torch.func.vmap``.
        patience: so many such steps in a row.
        draws: random tensors for a rule that needs them: a tree of tensors (S, ...), of which step s gets (...), or a
            function of the step's index, such as ``normal_draws``.
        create_graph: True records the steps, so that the end can be differentiated by parameters and start, even where
            gradients are off; False records nothing; None does as the surroundings do.

    Returns:
        The trajectory.

    Raises:
        ValueError: a number of steps or a patience below 1, a tolerance that is negative or has nothing to look at,
            energies to record without an ``energy``, or draws for fewer than S steps.
    """
    watch = _Watch(energy, energies_at, states_at, change, tolerance, patience)
    with _recording(create_graph):
        watch.begin(start)
        state, taken = start, 0
        for taken, after in enumerate(walk(step, start, num_steps, draws), 1):
            before, state = state, after
            watch.see(taken, before, state, last=taken == num_steps)
            if watch.settled:
                break
        return watch.trajectory(state, taken)


def walk(step: StepRule[State], start: State, num_steps: int, draws: Any = None) -> Iterator[State]:
    """Yield the states x_1 ... x_S of a descent, each when it is asked for; arguments and errors as for ``descend``."""
    at_least("num_steps", num_steps)
    _check_draws(draws, num_steps)
    state = start
    for index in range(num_steps):
        state = step(state, index, _drawn(draws, index))
        yield state


def gradient(energy: Energy[State], state: State) -> State:
    """Compute dE/dx, E the sum of all energies, at the state: a tree like the state.

    It is ``torch.func.grad``, so it works under ``torch.func.vmap`` and where gradients are off.  Where they are on,
    the result can be differentiated again, by the state and by the parameters that the energy reads.
    """
    found: State = torch.func.grad(lambda at: energy(at).sum())(state)  # a tree of (...), as the state
    return found


@dataclass(frozen=True)
class GradientStep(Generic[State]):
    """A rule that steps x <- x - step_size dE/dx + noise_scale w, where w are the step's draws.

    Without noise that is gradient descent, with it Langevin dynamics.

    Args:
        energy: E, one tensor of any shape; its sum is differentiated, so each number may belong to one example.
        step_size: a number, or a tensor that broadcasts against every tensor of the state.
        noise_scale: as ``step_size``; 0 leaves the noise out.

    Raises:
        ValueError: noise without draws, or draws without noise.
    """

    energy: Energy[State]
    step_size: float | Tensor
    noise_scale: float | Tensor = 0.0

    def __call__(self, state: State, index: int, draws: Any) -> State:
        noisy = isinstance(self.noise_scale, Tensor) or self.noise_scale != 0
        if noisy != (draws is not None):
            raise ValueError(f"noise_scale={self.noise_scale} and draws go together: give both of them, or neither")
        moved: State = tree_map(lambda x, g: x - self.step_size * g, state, gradient(self.energy, state))
        if noisy:
            moved = tree_map(lambda x, w: x + self.noise_scale * w, moved, draws)
        return moved


def normal_draws(like: State, generator: torch.Generator | None = None) -> Callable[[int], State]:
    """Return draws for ``descend``: standard normal numbers in the shapes and dtypes of a state, anew for every step.

    They come from the generator, on its device, or from torch's global one on the state's device.  Under
    ``torch.func.vmap`` give tensors (S, ...) instead, which are mapped like any other input.
    """

    def draw(index: int) -> State:
        found: State = tree_map(lambda x: _normal(x, generator), like)
        return found

    return draw


class _Watch(Generic[State]):
    """Records what is asked for while a descent goes on, and sees whether it has settled."""

    def __init__(
        self,
        energy: Energy[State] | None,
        energies_at: Collection[int],
        states_at: Collection[int],
        change: Change[State] | None,
        tolerance: float | None,
        patience: int,
    ) -> None:
        if tolerance is not None and not tolerance >= 0:
            raise ValueError(f"tolerance must be None or at least 0, got {tolerance!r}")
        if energy is None and (energies_at or (tolerance is not None and change is None)):
            raise ValueError("energies_at, and a tolerance without change=, need an energy: give energy=")
        self.energy, self.change = energy, change
        self.energies_at, self.states_at = energies_at, states_at
        self.tolerance, self.patience = tolerance, at_least("patience", patience)
        self.by_energy = tolerance is not None and change is None
        self.calm = 0
        self.last_energy: Any = None
        self.last_change: Tensor | None = None
        self.states: list[State] = []
        self.energies: list[Any] = []
        self.changes: list[Tensor] = []

    @property
    def settled(self) -> bool:
        return self.calm >= self.patience

    def begin(self, state: State) -> None:
        self._record(0, state)

    def see(self, number: int, before: State, after: State, last: bool) -> None:
        """Look at the state after step ``number``, from 1 on."""
        energy_before = self.last_energy
        self._record(number, after)
        recorded = number in self.energies_at
        if self.by_energy:
            self.last_change = _relative(energy_before, self.last_energy)
        elif self.change is not None and (recorded or last or self.tolerance is not None):
            self.last_change = self.change(before, after)
        if recorded and self.last_change is not None:
            self.changes.append(self.last_change)
        if self.tolerance is not None and self.last_change is not None:
            self.calm = self.calm + 1 if bool((self.last_change <= self.tolerance).all()) else 0

    def trajectory(self, state: State, num_steps: int) -> Trajectory[State]:
        changes = torch.stack(self.changes) if self.changes else None  # (R, ...)
        return Trajectory(state, num_steps, _stacked(self.states), _stacked(self.energies), self.last_change, changes)

    def _record(self, number: int, state: State) -> None:
        if number in self.states_at:
            self.states.append(tree_map(torch.clone, state))
        if self.energy is not None and (self.by_energy or number in self.energies_at):
            self.last_energy = self.energy(state)
            if number in self.energies_at:
                self.energies.append(self.last_energy)


def _relative(before: Any, after: Any) -> Tensor:
    """Compute |E' - E| / max(|E|, |E'|), 0 where both energies are 0."""
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        raise ValueError("a tolerance without change= looks at one tensor of energies: give change=, or such an energy")
    size = torch.maximum(before.abs(), after.abs())
    return (after - before).abs() / size.clamp(min=torch.finfo(size.dtype).tiny)


def _recording(create_graph: bool | None) -> AbstractContextManager[Any]:
    return nullcontext() if create_graph is None else torch.set_grad_enabled(create_graph)


def _stacked(trees: list[Any]) -> Any:
    """Stack trees of tensors (...) into one tree of tensors (R, ...); None where there is no tree."""
    return tree_map(lambda *parts: torch.stack(parts), *trees) if trees else None  # (R, ...) each


def _drawn(draws: Any, index: int) -> Any:
    if draws is None or callable(draws):
        return None if draws is None else draws(index)
    return tree_map(lambda part: part[index], draws)  # (S, ...) -> (...)


def _check_draws(draws: Any, num_steps: int) -> None:
    if draws is None or callable(draws):
        return
    least = min([len(part) for part in tree_leaves(draws)] or [0])
    if least < num_steps:
        raise ValueError(f"draws are for {least} steps and the descent has {num_steps}: draw for every step")


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    device = like.device if generator is None else generator.device
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=device).to(like.device)
