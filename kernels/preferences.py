"""What a process prefers where only speed and memory differ: no model, config or checkpoint carries it.

It is no thread's own: autograd's threads have to compute again as the forward pass did.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

IMPLEMENTATIONS = ("auto", "reference")
"""The best way that can compute what is asked for, or the definition; see ``dispatch``."""


@dataclass(frozen=True)
class Speed:
    """What changes the time and the memory of a computation, and its results by rounding at most."""

    implementation: str = "auto"  # of ops that are called with "auto"
    recompute: bool = False  # where models can keep the states of their inner steps alone, and compute the rest again
    cuda_graph: bool = False  # where models can replay their inner steps as one CUDA graph
    device: str | None = None  # the type of device that the tensors stand for when memory is counted; None: their own

    def __post_init__(self) -> None:
        if self.implementation not in IMPLEMENTATIONS:
            raise ValueError(f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, got {self.implementation!r}")


_ENTERED = [Speed()]


def speed() -> Speed:
    """Return the preferences of the innermost ``prefer``, or the defaults."""
    return _ENTERED[-1]


@contextlib.contextmanager
def prefer(**preferences: Any) -> Iterator[None]:
    """Set preferences, fields of ``Speed``, of this process within a ``with`` block; the others stay as they are.

    Raises:
        ValueError: an unknown implementation.
    """
    _ENTERED.append(replace(speed(), **preferences))
    try:
        yield
    finally:
        _ENTERED.pop()
