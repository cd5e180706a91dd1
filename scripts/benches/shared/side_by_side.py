"""What every bench shares: both sides interleaved in one process, and what is kept of the measurement."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

ROUNDS = 7


@dataclass(frozen=True)
class Comparison:
    """Our side against the other, in ``unit`` (lower is better)."""

    kind: ClassVar[str] = "comparisons"
    """What such rows are called in a bench's file."""
    case: str
    unit: str
    ours: list[float]
    theirs: list[float]
    other: str
    relative_error: float
    """The largest relative difference of what both sides computed."""
    goal: float | None = None
    teraflops: float | None = None
    """Matrix products per second of our side, where they were counted."""
    gigabytes_per_second: float | None = None
    """What our side has to move through memory, per second, where it was counted."""

    @property
    def ratio(self) -> float:
        return statistics.median(self.theirs) / statistics.median(self.ours)

    def line(self) -> str:
        """Write the comparison for the terminal."""
        goal = f", goal {self.goal:g}x" if self.goal else ""
        rate = f"; {self.teraflops:.3g} TFLOP/s" if self.teraflops else ""
        rate += f"; {self.gigabytes_per_second:.3g} GB/s" if self.gigabytes_per_second else ""
        return (
            f"{self.case}: {self.ratio:.2f}x{goal}; {self.unit}: ours {_spread(self.ours)}, "
            f"{self.other} {_spread(self.theirs)}; relative error {self.relative_error:.1e}{rate}"
        )

    def record(self) -> dict[str, Any]:
        """Return everything measured."""
        return {**asdict(self), "ratio": self.ratio, "rounds": ROUNDS}


def interleaved(
    ours: Callable[[], object], other: Callable[[], object], units: int, device: torch.device
) -> tuple[list[float], list[float]]:
    """Measure milliseconds per unit of both sides, one round of each in turn, after a round that is not counted."""
    times: tuple[list[float], list[float]] = ([], [])
    for round_index in range(ROUNDS + 1):
        for side, work in enumerate((ours, other)):
            wait(device)
            start = time.perf_counter()
            work()
            wait(device)
            if round_index:
                times[side].append((time.perf_counter() - start) / units * 1e3)
    return times


def relative_error(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Return the norm of the difference of all tensors together, relative to the norm of the expected ones."""
    pairs = [(one.detach(), two.detach()) for one, two in zip(found, expected, strict=True)]
    difference = torch.stack([torch.linalg.vector_norm(one - two) for one, two in pairs])
    size = torch.stack([torch.linalg.vector_norm(two) for _, two in pairs])
    return float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(size))


def _spread(times: list[float]) -> str:
    return f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f})"


def wait(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
