"""What every bench shares: both sides interleaved in one process, what is kept of the measurement, and memory."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.training.machine import forget_peak_memory, peak_memory_mib

ROUNDS = 7
MIB = 2**20
Work = Callable[[], Any]


def check_on_gpu(device: torch.device) -> None:
    """Raise UsageError where our side cannot run."""
    if device.type != "cuda":
        raise UsageError("our side is a Triton kernel, which runs on a GPU: give --device cuda")


@dataclass(frozen=True)
class Comparison:
    """Our side against the other, in ``unit`` (lower is better)."""

    kind: ClassVar[str] = "comparisons"
    case: str
    unit: str
    ours: list[float]
    theirs: list[float]
    other: str
    relative_error: float = 0.0
    """The largest relative difference of what both sides computed."""
    goal: float | None = None
    teraflops: float | None = None
    """Matrix products per second of our side, where they were counted."""

    @property
    def ratio(self) -> float:
        return statistics.median(self.theirs) / statistics.median(self.ours)

    def line(self) -> str:
        goal = f", goal {self.goal:g}x" if self.goal else ""
        rate = f"; {self.teraflops:.3g} TFLOP/s" if self.teraflops else ""
        return (
            f"{self.case}: {self.ratio:.2f}x{goal}; {self.unit}: ours {_spread(self.ours)}, "
            f"{self.other} {_spread(self.theirs)}; relative error {self.relative_error:.1e}{rate}"
        )

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "rounds": ROUNDS}


def _spread(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f})"


def timed(
    case: str,
    unit: str,
    ours: Work,
    theirs: Work,
    other: str,
    *,
    calls: int = 1,
    units: int = 1,
    error: float | None = None,
    goal: float | None = None,
    flops: float | None = None,
) -> Comparison:
    """Compare the milliseconds of two sides: one round of each in turn, after a round that is not counted.

    Args:
        calls: of a side in a round, between which nothing waits.
        units: of work in a call; times are per unit.
        error: relative, of our side; None where both sides return tensors, which are then compared one by one.
        flops: operations of matrix products of a unit of our side.
    """
    error = largest_error(ours(), theirs()) if error is None else error
    times: tuple[list[float], list[float]] = ([], [])
    for round_index in range(ROUNDS + 1):
        for side, work in zip(times, (ours, theirs), strict=True):
            wait()
            start = time.perf_counter()
            for _ in range(calls):
                work()
            wait()
            if round_index:
                side.append((time.perf_counter() - start) / (calls * units) * 1e3)
    teraflops = None if flops is None else flops / (sorted(times[0])[ROUNDS // 2] * 1e-3) / 1e12
    return Comparison(case, unit, *times, other, error, goal, teraflops)


def wait() -> None:
    """Wait until a GPU, if one is in use, has done what it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def normal(device: torch.device) -> Callable[..., Tensor]:
    """Seed torch with 0, and return what draws normal numbers of a shape."""
    torch.manual_seed(0)
    return partial(torch.randn, device=device)


def relative_error(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Return the norm of the difference of all tensors together, relative to the norm of the expected ones."""
    pairs = [(one.detach(), two.detach()) for one, two in zip(found, expected, strict=True)]
    difference = torch.stack([torch.linalg.vector_norm(one - two) for one, two in pairs])
    size = torch.stack([torch.linalg.vector_norm(two) for _, two in pairs])
    return float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(size))


def largest_error(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Return the largest ``relative_error`` of a tensor by itself, in float64."""
    return max(relative_error([one.double()], [two.double()]) for one, two in zip(found, expected, strict=True))


def with_gradients(
    forward: Callable[[], Tensor | Sequence[Tensor]], leaves: Sequence[Tensor]
) -> Callable[[], list[Tensor]]:
    """Return what computes results and their gradients by all leaves, along the same directions each time."""
    directions: list[Tensor] = []

    def work() -> list[Tensor]:
        found = forward()
        results = [found] if isinstance(found, Tensor) else list(found)
        if not directions:
            directions.extend(
                torch.arange(one.numel(), device=one.device).cos().view_as(one).to(one) for one in results
            )
        gradients = torch.autograd.grad(results, list(leaves), directions)
        return [*(one.detach() for one in results), *gradients]

    return work


def added_memory(work: Work, device: torch.device, warm_up: Work | None = None) -> float:
    """Return the MiB by which ``work`` raises the peak of this process; on a GPU what the allocator has given out,
    after ``warm_up`` or ``work`` has loaded libraries that keep memory.
    """
    if device.type == "cuda":
        (warm_up or work)()
        wait()
        forget_peak_memory(device)  # the peak is then what is allocated now
    before = peak_memory_mib(device)
    work()
    wait()
    return peak_memory_mib(device) - before


def in_child(measure: Callable[..., float], *arguments: object, **environment: str) -> float:
    """Return ``measure(*arguments)`` of a process of its own on one thread: no process can lower the peak it has."""
    os.environ.update(OMP_NUM_THREADS="1", **environment)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()
