"""Where the time of a step goes in cells of scale cpu: matrix products, other operations, and what is around them.

A step is the forward and backward pass of a batch, or what else gives the gradients, with the draws of the first step.
Seconds are the processor's, for one thread.  Matrix products and other operations are what torch's profiler gives to
each operation alone; the rest is Python and dispatch.  The profiler makes all of it slower, so shares are given, of the
profiled time.  What a compiled loss gains is measured last.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any, ClassVar

import torch
from torch.profiler import ProfilerActivity, profile

from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Cell
from paper_repro.tables import plan, spec
from paper_repro.training import counting
from paper_repro.training.build import BuiltCell, build
from paper_repro.training.module import PaperModule

ROUNDS = 15
UNMEASURED = 3
BATCHES = 4
SLOWEST = 4
CELLS: tuple[tuple[str, dict[str, str]], ...] = (
    ("nrgpt/fig4", {"model": "gpt", "width": "w128"}),
    ("nrgpt/fig4", {"model": "ff2w", "width": "w128"}),
    ("ngpt/fig7", {"model": "gpt", "context": "c1k"}),
    ("ngpt/fig7", {"model": "ngpt", "context": "c1k"}),
    ("cem/fig2a", {"model": "llama"}),
    ("cem/fig2a", {"model": "attention"}),
    ("cem/table3", {"model": "t8"}),
    ("cet/table1", {"method": "ep"}),
    ("cet/table1", {"method": "tbpte"}),
    ("ebt/table2", {"technique": "fixed_step_size"}),
    ("ebt/table5", {"model": "rnn"}),
    ("ebt/table5", {"model": "ebt"}),
    ("ebt/figB1", {"model": "ebt", "width": "one"}),
    ("ebt/table4", {"model": "ebt"}),
)
"""Artifacts and a place in each; the first cell there is measured."""
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
PRODUCTS = frozenset(
    {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "mv", "dot", ATTENTION, f"{ATTENTION}_backward"}
)
"""Operations of aten that are matrix products; of torch's attention they are the greater part."""


@dataclass(frozen=True)
class Profile:
    """What a step of one kind of cells takes."""

    kind: ClassVar[str] = "cells"
    case: str
    milliseconds: list[float]  # of each round
    gigaflops: float  # matrix products of a step, as torch counts what is dispatched
    products: float  # share of matrix products in the time of a step
    others: float  # share of all other operations
    slowest: list[tuple[str, float]]  # the largest shares of other operations
    evaluations: float  # share of the evaluations in the middle of a run in its time
    last: float  # share of the evaluation at the end
    compiled: float | None  # time of a compiled step over that of an uncompiled one; None if the loss is never compiled

    @property
    def rate(self) -> float:
        """Matrix products, GFLOP/s."""
        return self.gigaflops / statistics.median(self.milliseconds) * 1e3

    def line(self) -> str:
        times = self.milliseconds
        slowest = ", ".join(f"{name} {share:.0%}" for name, share in self.slowest)
        compiled = f"; compiled {self.compiled:.2f} of it" if self.compiled else ""
        return (
            f"{self.case}: {statistics.median(times):.1f} ms a step ({min(times):.1f} to {max(times):.1f}){compiled}; "
            f"{self.rate:.1f} GFLOP/s; products {self.products:.0%}, other operations {self.others:.0%} ({slowest}); "
            f"evaluations {self.evaluations:.1%} of a run, the last one {self.last:.1%}"
        )

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "rate": self.rate}


def cells(device: torch.device) -> Iterator[Profile]:
    """Profile the first cell at each place of ``CELLS``."""
    if device.type != "cpu":
        raise SystemExit("error: these cells are those of scale cpu: leave --device out")
    for name, place in CELLS:
        yield measured(name, place)


def measured(name: str, place: dict[str, str], scale: str = "cpu", rounds: int = ROUNDS) -> Profile:
    """Return the profile of the first cell of an artifact at a place."""
    cell = first_cell(name, place, scale)
    built = build(Cell("bench", cell.config))
    built.data.prepare_data()
    built.data.setup("fit")
    batches = cycle([built.data.train_batch(step) for step in range(BATCHES)])

    def step() -> None:
        built.module.counted_step(next(batches))
        built.module.zero_grad(set_to_none=True)

    each = _rounds(step, rounds)
    with profile(activities=[ProfilerActivity.CPU]) as found:  # its times are those of the clock
        started = time.perf_counter()
        for _ in range(BATCHES):
            step()
        spent = time.perf_counter() - started
    alone = Counter[str]()
    for event in found.key_averages():
        if event.key.startswith("aten::"):
            alone[event.key.removeprefix("aten::")] += event.self_cpu_time_total / 1e6 / spent
    others = Counter({name: share for name, share in alone.items() if name not in PRODUCTS})
    middle, last = _evaluations(built)
    run = statistics.median(each) * built.training.accumulate * built.training.steps + middle + last
    return Profile(
        case=f"{name} {', '.join(place.values())}",
        milliseconds=[round(one * 1e3, 3) for one in each],
        gigaflops=counting.measure(cell.config).step_flops / built.training.accumulate / 1e9,
        products=round(sum(alone[name] for name in PRODUCTS), 4),
        others=round(others.total(), 4),
        slowest=[(name, round(share, 4)) for name, share in others.most_common(SLOWEST)],
        evaluations=round(middle / run, 4),
        last=round(last / run, 4),
        compiled=None if built.module.uncompilable else _compiled(built.module, batches, rounds),
    )


def first_cell(name: str, place: dict[str, str], scale: str) -> PlannedCell:
    return next(
        cell for cell in plan.make(spec.load(name), scale, [0]).cells if place.items() <= dict(cell.key).items()
    )


def _rounds(work: Callable[[], object], rounds: int) -> list[float]:
    """Return the seconds of each round, after some that are not counted."""
    return [_spent(work) for _ in range(UNMEASURED + rounds)][UNMEASURED:]


def _spent(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _evaluations(built: BuiltCell) -> tuple[float, float]:
    """Return the seconds of all evaluations in the middle of a run, and of the one at its end."""
    training, module, data = built.training, built.module, built.data
    data.setup("test")
    last = _spent(lambda: module.evaluate(data))
    if training.evaluate_every is None:
        return 0.0, last
    count = (training.steps - 1) // training.evaluate_every
    return count * _spent(lambda: module.evaluate(data, training.evaluation_batches)), last


def _compiled(module: PaperModule, batches: Iterator[Any], rounds: int) -> float:
    def step() -> None:
        batch = next(batches)
        loss, _ = module.step_loss(batch, module.example_draws(batch), module.initial_carry(batch))
        loss.backward()
        module.zero_grad(set_to_none=True)

    plain = statistics.median(_rounds(step, rounds))
    module.compile_loss()
    found = statistics.median(_rounds(step, rounds))
    module.compute_as_built()
    return round(found / plain, 3)
