"""What an op declares of its Triton kernels in ``kernels/<op>/shapes.py``: where they are launched, and what for.

``DECLARED`` there is an ``Op``.  Its shapes call the code that launches, on tensors of the meta device, so that tiles,
warps and grid are those that a GPU would be given.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: its arguments by name, and the grid of programs."""

    kernel: str
    """Its op and its name, as in "sphere_step._forward"."""
    given: Mapping[str, Any]
    grid: tuple[int, int, int]
    options: Mapping[str, int]
    """Warps and stages, where the launch names them."""
    start: Callable[[], Any]
    """Compiles what was launched, for the GPU that ``launches.on`` stands in for."""

    @property
    def name(self) -> str:
        """Return the kernel's own name."""
        return self.kernel.rpartition(".")[2]

    @property
    def tile(self) -> dict[str, int]:
        """Return the constants that are whole numbers, in capital letters."""
        return {name: value for name, value in self.given.items() if name.isupper() and type(value) is int}

    @property
    def programs(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


class Work(NamedTuple):
    """What one launch has to do, whichever way it is done."""

    elements: int
    moved: int
    """Bytes that are read or written at least once, each counted once for either."""
    products: int = 0
    """FLOPs of matrix products, two for each multiplication, without padding and without what a mask hides."""


@dataclass(frozen=True)
class Shape:
    """Sizes at which a model launches an op."""

    model: str
    """The model, and which of its layers or phases, if there are several."""
    size: str
    launch: Callable[[], object]


@dataclass(frozen=True)
class Op:
    """The kernels of one op."""

    element: str
    """What is counted as one element, in the plural."""
    tiles: str
    """Why tiles, warps and programs are chosen as they are; one or more sentences."""
    work: Callable[[Launch], Work]
    shapes: tuple[Shape, ...]
    elementwise: bool = True
    """Whether memory bounds it: several blocks must then fit on a multiprocessor, to cover the latency."""


def declared() -> dict[str, Op]:
    """Return what all ops declare, by the op's folder."""
    folder = Path(__file__).parent.parent
    names = sorted(path.parent.name for path in folder.glob("*/shapes.py") if path.parent != Path(__file__).parent)
    return {name: import_module(f"paper_repro.kernels.{name}.shapes").DECLARED for name in names}


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor (...) of this shape without numbers."""
    return torch.empty(shape, dtype=dtype, device="meta")  # (...,)


def moved(launch: Launch, written: tuple[str, ...], updated: tuple[str, ...] = (), unused: tuple[str, ...] = ()) -> int:
    """Count the bytes of all tensors of a launch but the ``unused``: read, unless they are ``written`` alone, or
    ``updated``, which is both.

    A tensor that stands for one that is not there counts once with the one that it is.
    """
    given = {name: value for name, value in launch.given.items() if name not in unused}
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    into = {id(tensors[name]): tensors[name] for name in (*written, *updated)}
    read = {id(value): value for name, value in tensors.items() if name not in written}
    return sum(value.numel() * value.element_size() for side in (into, read) for value in side.values())


@contextlib.contextmanager
def tf32(allowed: bool = True) -> Iterator[None]:
    """Let products of float32 be computed in TF32, as ``machine.tf32`` does, or not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
