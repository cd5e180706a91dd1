"""What the Triton kernels compile to for an A100 and an H100, neither of which it needs, and what bounds their time.

Each op declares in ``kernels/<op>/shapes.py`` where the papers' models launch it.  A row is one launch on one GPU:
registers, spilled bytes and shared memory as ptxas has assigned them, the blocks that a multiprocessor then holds, and
the least time that bytes, matrix products and other arithmetic take at the rates of the GPU's data sheet.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import triton

from paper_repro.kernels.static import launches
from paper_repro.kernels.static.gpus import GPU, GPUS
from paper_repro.kernels.static.shapes import Launch, Op, Shape, declared


@dataclass(frozen=True)
class Row:
    """One launch, compiled for one GPU."""

    kind: ClassVar[str] = "programs"
    kernel: str
    model: str
    size: str
    gpu: str
    architecture: str
    elementwise: bool
    tile: dict[str, int]
    """The constants of the program that are whole numbers."""
    warps: int
    stages: int
    programs: int
    registers: int
    """Registers of a thread."""
    spilled: int
    """Bytes of a thread's stack."""
    shared: int
    """Bytes of shared memory of a block."""
    blocks: int
    """Blocks that a multiprocessor holds at once."""
    waves: float
    """Programs over what all multiprocessors hold at once."""
    elements: int
    bytes_each: float
    """Bytes that are moved at least, for each element."""
    products_each: float
    """FLOPs of matrix products that the result takes, for each element."""
    padding: float | None
    """FLOPs of matrix products that are computed over those that the result takes; None without products."""
    operations_each: float
    """Other arithmetic that is computed, for each element."""
    microseconds: dict[str, float]
    """The least time of the launch by what it moves and computes."""
    bound: str
    """What takes longest of these."""

    def line(self) -> str:
        """Write the row for the terminal."""
        return (
            f"{self.kernel}, {self.model}, {self.size}, {self.architecture}: {self.registers} registers, "
            f"{self.spilled} bytes spilled, {self.shared / 1024:.3g} KiB shared, {self.blocks} blocks, "
            f"{self.waves:.3g} waves; at least {self.microseconds[self.bound]:.3g} us by {self.bound}"
        )

    def record(self) -> dict[str, Any]:
        """Return everything that is known."""
        return asdict(self)


def about() -> dict[str, Any]:
    """Return the versions of the compilers, what an element of each op is, and why it has the tiles that it has."""
    ops = {name: {"element": op.element, "tiles": op.tiles} for name, op in declared().items()}
    return {"triton": triton.__version__, "ptxas": launches.ptxas_version(), "ops": ops}


def compare(device: torch.device) -> Iterator[Row]:
    """Compile everything that is declared; the device has no part in it."""
    for op in declared().values():
        for shape in op.shapes:
            for gpu in GPUS:
                for launch in launches.record(shape, gpu):
                    yield row(op, shape, launch, gpu)


def row(op: Op, shape: Shape, launch: Launch, gpu: GPU) -> Row:
    """Compile a launch."""
    program, work = launches.compiled(launch, gpu), op.work(launch)
    products = program.counted.products
    performed, blocks = sum(products.values()), gpu.blocks(program.registers, program.shared, program.warps)
    needed = {kind: flops * work.products / performed for kind, flops in products.items()}
    seconds = {
        "memory": work.moved / gpu.bytes_per_second,
        "products": sum(flops / gpu.products_per_second[kind] for kind, flops in needed.items()),
        "operations": program.counted.operations / gpu.operations_per_second,
    }
    return Row(
        kernel=launch.kernel,
        model=shape.model,
        size=shape.size,
        gpu=gpu.name,
        architecture=gpu.architecture,
        elementwise=op.elementwise,
        tile=launch.tile,
        warps=program.warps,
        stages=program.stages,
        programs=launch.programs,
        registers=program.registers,
        spilled=program.spilled,
        shared=program.shared,
        blocks=blocks,
        waves=launch.programs / (blocks * gpu.processors) if blocks else 0.0,
        elements=work.elements,
        bytes_each=work.moved / work.elements,
        products_each=work.products / work.elements,
        padding=performed / work.products if work.products else None,
        operations_each=program.counted.operations / work.elements,
        microseconds={name: value * 1e6 for name, value in seconds.items()},
        bound=max(seconds, key=lambda name: seconds[name]),
    )
