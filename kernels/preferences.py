"""What a process prefers where only speed and memory differ: no model, config or checkpoint carries it.

The preferences are plain variables of the process, not of a thread: what the backward pass computes again on a thread
of autograd's has to be computed as it was in the forward pass.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

IMPLEMENTATIONS = ("auto", "fused", "closed_form", "reference")
"""All words for an implementation; each op has some of them, and "auto" and "reference" always.

"fused" is a kernel (Triton's, or one that torch has); "closed_form" is written by hand in PyTorch, with a backward pass
of its own or none, in pieces; "reference" is the definition, which autograd differentiates to any order; "auto" takes
the best of them that can compute what is asked for.
"""


@dataclass(frozen=True)
class Speed:
    """What changes the time and the memory of a computation, and its results by rounding at most.

    Raises:
        ValueError: an unknown implementation.
    """

    implementation: str = "auto"
    """What ops take that are called with "auto", wherever they have it and can; elsewhere "auto" decides."""
    recompute: bool = False
    """Models that can keep only the states of their inner steps, and compute the rest again in the backward pass."""
    cuda_graph: bool = False
    """Models that can replay their inner steps as one CUDA graph."""

    def __post_init__(self) -> None:
        if self.implementation not in IMPLEMENTATIONS:
            raise ValueError(f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, got {self.implementation!r}")


_ENTERED = [Speed()]


def speed() -> Speed:
    """Return the preferences of the innermost ``prefer``, or the defaults."""
    return _ENTERED[-1]


@contextlib.contextmanager
def prefer(
    implementation: str | None = None, recompute: bool | None = None, cuda_graph: bool | None = None
) -> Iterator[Speed]:
    """Set the preferences of this process within a ``with`` block; None leaves a preference as it is.

    Raises:
        ValueError: an unknown implementation.
    """
    outer = speed()
    inner = Speed(
        implementation=outer.implementation if implementation is None else implementation,
        recompute=outer.recompute if recompute is None else recompute,
        cuda_graph=outer.cuda_graph if cuda_graph is None else cuda_graph,
    )
    _ENTERED.append(inner)
    try:
        yield inner
    finally:
        _ENTERED.pop()
