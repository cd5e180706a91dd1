"""How a training step gets its loss and its gradients other than by one backward pass of the whole batch.

In micro-batches, which take less memory; in shares of several devices; or replayed as one CUDA graph.  The result is
the same but for rounding.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, first_line
from paper_repro.models.common import capture
from paper_repro.training.tensors import map_tensors, tensors_of

Tree = Any
"""Tensors, or tuples, lists and dicts of them."""
Gradients = Sequence[Tensor | None]
Compute = Callable[[Any, Any, Tree], tuple[Tensor, Tree, Gradients]]
"""From a batch, its draws and a carry to the loss, the next carry and the gradient of each parameter."""
Step = Callable[[Any, Any, Tree], tuple[Tensor, Tree]]
"""The same with gradients that a backward pass of the loss hands on: ``PaperModule.loss_and_carry``."""
MOST_GRAPHS = 16
"""Each graph keeps memory of its own; data of more shapes are no case for graphs."""


def rows_of(batch: Any) -> int:
    """Return B, the number of rows of a batch."""
    return len(tensors_of(batch)[0])


def shares(rows: int, count: int) -> list[slice]:
    """Cut rows into shares whose sizes differ by at most one."""
    edges = [rows * number // count for number in range(count + 1)]
    return [slice(*pair) for pair in itertools.pairwise(edges)]


def rows_of_draw(name: str, draw: Tensor, whole: Sequence[int], own: Sequence[int], part: slice) -> Tensor:
    """Return what some rows of a batch need of a random tensor, from the shapes that all and some rows declare."""
    dims = [dim for dim, (large, small) in enumerate(zip(whole, own, strict=True)) if large != small]
    if not dims:
        return draw
    if len(dims) > 1 or own[dims[0]] != part.stop - part.start:
        raise UsageError(f"the random tensor '{name}' has other rows than the batch: the module overrides split()")
    return draw[(slice(None),) * dims[0] + (part,)]


class _Known(torch.autograd.Function):
    """A loss whose gradients were computed together with it."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: Gradients, *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        found, ctx.gradients = ctx.gradients, None
        there = iter(torch._foreach_mul([one for one in found if one is not None], scale))
        return None, None, *[None if one is None else next(there) for one in found]


def with_gradients(compute: Compute, parameters: Sequence[Tensor]) -> Step:
    """Return a step whose backward pass hands on the gradients that ``compute`` has found."""

    def step(batch: Any, draws: Any, carry: Tree) -> tuple[Tensor, Tree]:
        loss, after, gradients = compute(batch, draws, carry)
        return _Known.apply(loss, gradients, *parameters), after

    return step


def gradients_of(step: Step, parameters: Sequence[Tensor]) -> Compute:
    """Return the step with the gradients of its loss."""

    def compute(batch: Any, draws: Any, carry: Tree) -> tuple[Tensor, Tree, Gradients]:
        loss, after = step(batch, draws, carry)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return loss.detach(), map_tensors(Tensor.detach, after), gradients

    return compute


def in_micro_batches(
    compute: Compute,
    split: Callable[[Any, Any, Tree, Sequence[slice]], list[tuple[Any, Any]]],
    weigh: Callable[[Any, Any, Tree], Tensor | None],
    most: int,
) -> Compute:
    """Return the computation of a batch in micro-batches of at most ``most`` rows, one after another.

    Args:
        split: returns the rows of each slice with their draws (``PaperModule.split``).
        weigh: returns how many targets a loss is the mean of; None: its rows (``PaperModule.num_targets``).
    """

    def weight(batch: Any, draws: Any, carry: Tree) -> Tensor:
        targets = weigh(batch, draws, carry)
        return torch.tensor(rows_of(batch)) if targets is None else targets

    def computed(batch: Any, draws: Any, carry: Tree) -> tuple[Tensor, Tree, Gradients]:
        rows = rows_of(batch)
        if rows <= most:
            return compute(batch, draws, carry)
        total, losses, sums = weight(batch, draws, carry).clamp(min=1).double(), list[Tensor](), list[Any]()
        for own, own_draws in split(batch, draws, carry, shares(rows, math.ceil(rows / most))):
            share = weight(own, own_draws, carry) / total
            loss, carry, gradients = compute(own, own_draws, carry)
            share = share.to(loss)
            losses.append(loss * share)
            scaled = [None if one is None else one * share.to(one.dtype) for one in gradients]
            sums = [_sum(*pair) for pair in zip(sums, scaled, strict=True)] if sums else scaled
        return torch.stack(losses).sum(), carry, sums

    return computed


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one.add_(other)


class Graphs:
    """Replays a computation as one CUDA graph for each shape of its batches and each value of its constants.

    A tensor of the carry that a step writes in place stays where it is; the others are copied.  Dropout draws the
    numbers that it would draw without a graph.

    Args:
        constants: draws of one whole number that the computation branches on.
        alone: whether each call's carry is that of the call before.
        must: whether a computation that cannot be recorded is an error; else it is run as it is, and ``off`` says why.
    """

    def __init__(
        self,
        compute: Compute,
        constants: frozenset[str] = frozenset(),
        alone: bool = True,
        must: bool = False,
    ) -> None:
        self.compute, self.constants, self.alone, self.must = compute, constants, alone, must
        self.off = ""
        """Why new steps are not recorded; nothing where they are."""
        self._inputs: dict[Any, Tree] = {}
        self._graphs: dict[Any, tuple[Callable[[], Any], Any]] = {}

    def __str__(self) -> str:
        return f"no: {self.off}" if self.off else f"yes, {len(self._graphs)} of them"

    def __call__(self, batch: Any, draws: Any, carry: Tree) -> tuple[Tensor, Tree, Gradients]:
        fixed = {name: int(draws[name]) for name in sorted(self.constants & draws.keys())}
        given = batch, {name: own for name, own in draws.items() if name not in fixed}, carry
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors_of(given))
        key = shapes, *fixed.items()
        if key not in self._graphs and not self.off:
            self._record(key, given, fixed)
        if key not in self._graphs:
            return self.compute(batch, {**given[1], **fixed}, carry)
        (replay, (loss, after, gradients)), inputs = self._graphs[key], self._inputs[shapes]
        _copy(inputs, given)
        replay()
        own = {tensor.data_ptr() for tensor in tensors_of(inputs) if self.alone}
        after = map_tensors(lambda tensor: tensor if tensor.data_ptr() in own else tensor.clone(), after)
        return loss.clone(), after, gradients

    def _record(self, key: Any, given: Any, fixed: Mapping[str, int]) -> None:
        inputs = self._inputs.setdefault(key[0], map_tensors(Tensor.clone, given))
        _copy(inputs, given)
        before, device = map_tensors(Tensor.clone, inputs[2]), tensors_of(given)[0].device
        state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
        kind, batch, draws = device.type, inputs[0], {**inputs[1], **fixed}
        dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

        def work() -> tuple[Tensor, Tree, Gradients]:
            with torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False):  # a cast of before would be stale
                return self.compute(batch, draws, inputs[2])

        try:
            if len(self._graphs) == MOST_GRAPHS:
                raise RuntimeError(f"more than {MOST_GRAPHS} shapes of batches")
            self._graphs[key] = capture(work)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.off = first_line(error)
            if self.must:
                what = f"machine.cuda_graph=true: this step is no CUDA graph ({self.off})"
                raise UsageError(f"{what}: set machine.cuda_graph=auto, or false") from error
        finally:
            _copy(inputs[2], before)
            torch.cuda.set_rng_state(state, device) if kind == "cuda" else torch.set_rng_state(state)


def _copy(into: Tree, values: Tree) -> None:
    for own, value in zip(tensors_of(into), tensors_of(values), strict=True):
        if own.data_ptr() != value.data_ptr():
            own.copy_(value, non_blocking=True)
