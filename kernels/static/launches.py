"""Launches that are recorded instead of started, and compiled for a GPU that need not be there.

Triton sees the arguments that a GPU would be given, tensors of the meta device among them: what it specialises on
(pointers and strides that 16 divides, arguments that are 1) and its cache are its own.
"""

import contextlib
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from paper_repro.kernels.processors import Device, assume
from paper_repro.kernels.static.gpus import GPU, WARP
from paper_repro.kernels.static.operations import Counted, count
from paper_repro.kernels.static.shapes import Launch, Shape

_run = JITFunction.run


@dataclass(frozen=True)
class Program:
    """What a launch compiles to."""

    registers: int
    """Registers of a thread."""
    spilled: int
    """Bytes of a thread's stack: numbers that found no register."""
    shared: int
    """Bytes of shared memory of a block, without the system's."""
    warps: int
    stages: int
    counted: Counted
    """What all programs of the launch compute, padding and what masks hide included."""


class _Driver:
    """The part of Triton's driver that compiling reads; the capability stands for the device."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu

    def get_current_device(self) -> int:
        return self.gpu.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.gpu.capability, WARP)


@contextlib.contextmanager
def on(gpu: GPU) -> Iterator[None]:
    """Let Triton compile for this GPU, and grids be chosen for its multiprocessors.

    Raises:
        RuntimeError: Triton interprets, and therefore compiles nothing.
    """
    if knobs.runtime.interpret:
        raise RuntimeError(
            "TRITON_INTERPRET=1: Triton was imported to interpret kernels and compiles none; unset it, or set it to 0, "
            "before the process starts"
        )
    before = driver._active
    driver.set_active(_Driver(gpu))
    try:
        with assume(Device(gpu.processors, gpu.capability)):
            yield
    finally:
        driver.set_active(before)


def record(shape: Shape, gpu: GPU) -> list[Launch]:
    """Return what the shape launches on this GPU, in order; nothing is compiled or started."""
    found: list[Launch] = []

    def instead(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        given = dict(zip(kernel.arg_names, arguments, strict=False)) | options
        sizes = (*(grid(given) if callable(grid) else grid), 1, 1)[:3]
        named = {name: given.pop(name) for name in ("num_warps", "num_stages") if name in given}

        def start() -> Any:
            return _run(kernel, *arguments, grid=grid, warmup=True, **options)

        found.append(Launch(_name(kernel), given, (sizes[0], sizes[1], sizes[2]), named, start))

    with on(gpu):
        JITFunction.run = instead
        try:
            shape.launch()
        finally:
            JITFunction.run = _run
    return found


def compiled(launch: Launch, gpu: GPU) -> Program:
    """Compile what was launched, and read what it takes off the binary."""
    with on(gpu):
        found = launch.start()
    binary = next(path for name, path in found.metadata_group.items() if name.endswith(".cubin"))
    used = _resources(Path(binary))
    arguments = [launch.given[name] for name, kind in found.src.signature.items() if kind != "constexpr"]
    return Program(
        registers=used["REG"],
        spilled=used["STACK"],
        shared=found.metadata.shared,
        warps=found.metadata.num_warps,
        stages=found.metadata.num_stages,
        counted=count(found.asm["ttir"], arguments, launch.grid),
    )


def ptxas_version() -> str:
    """Return the release of the assembler that Triton takes."""
    return str(knobs.nvidia.ptxas.version)


def _name(kernel: Any) -> str:
    folder = kernel.fn.__module__.removeprefix("paper_repro.kernels.").rpartition(".")[0]
    return f"{folder}.{kernel.fn.__name__}"


def _resources(binary: Path) -> dict[str, int]:
    """Read registers, bytes of stack and others of the one kernel in a binary, as cuobjdump names them."""
    command: Sequence[str] = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(binary)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", printed)}
