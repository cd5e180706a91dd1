"""Forward and backward passes of a cell's loss that leave nothing behind, timed."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from paper_repro.datamodules.counter_based import Batch
from paper_repro.training.batches import place, tensors_of
from paper_repro.training.build import BuiltCell
from paper_repro.training.draws import Integers
from paper_repro.training.module import Draws, LossAndCarry
from paper_repro.training.step_time import wait

BATCHES = 4
MOST_VARIANTS = 4
"""The most values of the whole numbers that a compiled loss takes as constants: each is compiled by itself."""
_STEPS_LOOKED_AT = 200
"""Each variant is expected to be drawn in one of so many steps."""


class UntriableError(Exception):
    """A cell whose loss is never compiled; the text says why."""


@dataclass(frozen=True)
class _Pass:
    """What one call of the loss is given."""

    step: int
    batch: Batch
    draws: Draws


class Passes:
    """Passes of a cell's loss over its first batches.

    They change no parameter, no gradient and no carry; torch's random generators are as they were once ``untouched``
    ends.  The data are asked for batches by their number, so they do not advance.

    Args:
        built: its module is on the device, in the precision of training; its data are set up.
        context: what a forward pass is computed under (autocast).

    Raises:
        UntriableError: batches of several shapes, or too many variants of what a loss takes as constants.
    """

    def __init__(
        self, built: BuiltCell, device: torch.device, context: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self.module, self.device, self.context = built.module, device, context
        self._parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self._by_processor = device.type == "cpu" and torch.get_num_threads() == 1
        dtype = next((one.dtype for one in self._parameters if one.is_floating_point()), None)
        batches = [place(built.data.train_batch(step), device, dtype) for step in range(BATCHES)]
        self.shapes = sorted({_shapes(batch) for batch in batches})
        if len(self.shapes) > 1:
            raise UntriableError("its batches have several shapes, each of which would be compiled by itself")
        self._passes = list(self._chosen(batches))

    def __len__(self) -> int:
        return len(self._passes)

    @property
    def unit(self) -> str:
        """What ``seconds`` counts: those of the processor, where one thread works, which neighbours do not prolong."""
        return "processor" if self._by_processor else "wall"

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Hold torch's random generators and the module's mode as they are, and train within."""
        training = self.module.training
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            self.module.train()
            try:
                yield
            finally:
                self.module.train(training)

    def seconds(self, index: int, loss: LossAndCarry) -> float:
        """Return how long the pass of that number takes, modulo their number, by ``loss``: with its gradients."""
        one = self._passes[index % len(self)]
        carry = place(self.module.initial_carry(one.batch), self.device, None)
        torch.manual_seed(one.step)
        wait(self.device)
        started = self._now()
        with self.context():
            found, _ = loss(one.batch, dict(one.draws), carry)
        torch.autograd.grad(found, self._parameters, allow_unused=True)  # not backward: gradients stay as they are
        wait(self.device)
        return self._now() - started

    def spent(self) -> float:
        """Return a clock that also counts what the compilers that this process calls take, seconds."""
        if not self._by_processor:
            return time.perf_counter()
        found = os.times()
        return found.user + found.system + found.children_user + found.children_system

    def _now(self) -> float:
        return time.process_time() if self._by_processor else time.perf_counter()

    def _chosen(self, batches: list[Batch]) -> Iterator[_Pass]:
        """Yield passes of the first steps, each variant equally often."""
        declared = self.module.random_tensors(batches[0])
        names = sorted(self.module.constants & declared.keys())
        found: dict[tuple[int, ...], list[_Pass]] = {values: [] for values in self._variants(declared, names)}
        each = max(1, BATCHES // len(found))
        for step in range(_STEPS_LOOKED_AT):
            batch = batches[step % BATCHES]
            draws = self.module.draws_of(batch, step, 0, self.device)
            own = found[tuple(int(draws[name]) for name in names)]
            if len(own) < each:
                own.append(_Pass(step, batch, draws))
            if all(len(one) == each for one in found.values()):
                break
        yield from (one[index] for index in range(each) for one in found.values() if index < len(one))

    def _variants(self, declared: dict[str, Any], names: list[str]) -> list[tuple[int, ...]]:
        ranges = []
        for name in names:
            assert isinstance(declared[name], Integers), f"a constant is a whole number, {name} is not"
            ranges.append(range(declared[name].low, declared[name].high + 1))
        variants = list(product(*ranges))
        if len(variants) > MOST_VARIANTS:
            raise UntriableError(
                f"{' and '.join(names)} takes {len(variants)} values, each of which would be compiled by itself"
            )
        return variants


def _shapes(batch: Batch) -> str:
    return " ".join(f"{str(one.dtype).removeprefix('torch.')}{tuple(one.shape)}" for one in tensors_of(batch))
