"""What the machine section of a config asks for, and what the process is set to while it trains."""

import contextlib
import ctypes
import os
import platform
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import MACHINE
from paper_repro.cells.machine_section import check_machine, count_devices, share_batches
from paper_repro.kernels.preferences import prefer

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30
_FALLBACK_BYTES = 32 << 20


@dataclass(frozen=True)
class Machine:
    """The keys of ``machine`` that training reads; none of them changes a result but for rounding.

    Raises:
        UsageError: a value that ``check_machine`` refuses.
    """

    accelerator: str = "cpu"
    devices: int | list[int] = 1
    """Devices of this computer that share a cell's batches: a number, or the indices of GPUs."""
    nodes: int = 1
    """Computers with so many devices each, on all of which torchrun or srun has started the command."""
    strategy: str = "auto"
    """How several devices hold the model: each all of it ("auto", "ddp") or, at rest, its share of it ("fsdp")."""
    threads: int | None = None
    data_workers: int = 0
    """Processes that compute the batches of one device ahead of training; 0: the training process does it."""
    compile: bool | str = False
    """Run the training loss through ``torch.compile``; it draws the random numbers that it draws without.  "auto":
    where the run is long enough to gain, see ``single.compile_loss``."""
    tf32: bool = False
    """On a GPU, round the factors of float32 matrix products to TF32's 10 bits."""
    implementation: str = "auto"
    """What ops take that have it, see ``kernels.preferences``; "auto" is the fastest that can compute."""
    recompute: bool = False
    """Compute inner steps again in the backward pass, in models that can: less memory, more time."""
    cuda_graph: bool = False
    """Replay inner steps as one CUDA graph, in models that can."""
    fused_optimizer: bool | None = None
    """What torch's optimisers get as ``fused``; None is their own choice, and fused where cells are stacked."""
    checkpoint_every_seconds: float | None = 20
    checkpoint_every_steps: int | None = None
    progress_every_seconds: float = 0.5
    logger: str | None = None
    """Where losses go while a cell trains, beside log.txt: "csv", "tensorboard" or "wandb"; None: nowhere."""
    log_every_steps: int = 10
    """Optimiser steps between two points of the logger."""
    log_folder: str | None = None
    """The folder of the cell, in which the logger's files lie; the worker knows it."""

    def __post_init__(self) -> None:
        check_machine({MACHINE: vars(self)})

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> "Machine":
        """Read a config's machine section, whose other keys belong to the runner."""
        return cls(**{key: value for key, value in section.items() if key in cls.__dataclass_fields__})

    @property
    def count(self) -> int:
        """W, the number of devices of all nodes."""
        return self.nodes * self.devices_here

    @property
    def devices_here(self) -> int:
        """The number of devices of one node."""
        return count_devices(self.devices)

    def batches_each(self, accumulate: int) -> int:
        """Return how many of an optimiser step's ``accumulate`` batches each device computes.

        Raises:
            UsageError: the devices cannot share them evenly.
        """
        return share_batches(accumulate, self.devices, self.nodes)

    @property
    def device(self) -> torch.device:
        """Where the models lie; with several devices, the first."""
        return self.device_of(0)

    def device_of(self, local: int) -> torch.device:
        """Return the device of a process from its number on its node.

        Raises:
            UsageError: an accelerator or a GPU that this machine or this build of torch lacks.
        """
        name = "gpu" if self.accelerator == "cuda" else self.accelerator
        if name == "auto":
            name = "gpu" if torch.cuda.is_available() else "cpu"
        if name == "cpu":
            return torch.device("cpu")
        if name != "gpu":
            raise UsageError(f"machine.accelerator={self.accelerator!r}: expected cpu, gpu or auto")
        if not torch.cuda.is_available():
            raise UsageError(
                f"machine.accelerator={self.accelerator!r}, but torch {torch.__version__} sees no GPU here: "
                "set machine=cpu (--device cpu), or install a CUDA build of torch"
            )
        wanted = self.devices if isinstance(self.devices, list) else [*range(self.devices)]
        if max(wanted) >= torch.cuda.device_count():
            raise UsageError(f"machine.devices={self.devices}: there are {torch.cuda.device_count()} GPUs here")
        return torch.device("cuda", wanted[local])


def check_precision(precision: str, device: torch.device) -> None:
    """Raise UsageError if a device does not compute in this precision."""
    if precision == "16-mixed" and device.type == "cpu":  # where Lightning computes bf16-mixed
        raise UsageError(
            "training.precision=16-mixed: a CPU has no float16 autocast; set training.precision=bf16-mixed, or "
            "machine=gpu (--device gpu)"
        )


@contextlib.contextmanager
def settings(machine: Machine) -> Iterator[None]:
    """Threads, TF32 and what ops and models prefer as asked, denormal numbers flushed to zero, freed memory kept.

    Only the last is not undone.
    """
    keep_freed_memory()
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(machine.threads or threads)
    torch.set_flush_denormal(True)
    if machine.tf32 and machine.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        with prefer(machine.implementation, machine.recompute, machine.cuda_graph):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def keep_freed_memory() -> bool:
    """Ask glibc not to return freed blocks to the system, which costs a page fault per 4 kB at every training step.

    Another libc has no such setting; where ``MALLOC_*`` in the environment decides, nothing is done.  The process keeps
    at most its own peak.  Returns whether glibc agreed.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mapped = mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES) or mallopt(_M_MMAP_THRESHOLD, _FALLBACK_BYTES)
    return bool(mapped and mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))


def forget_peak_memory(device: torch.device) -> None:
    """Begin a new peak of torch's CUDA allocator; on a CPU do nothing."""
    if device.type == "cuda":
        torch.cuda.init()  # without an allocator torch refuses: "Invalid device argument"
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mib(device: torch.device) -> float:
    """Return the most memory used so far, MiB: of torch's CUDA allocator since its reset, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    status = Path("/proc/self/status")
    if status.is_file():  # Linux; what getrusage says there begins with the peak of the process that started this one
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text())
        if found:
            return int(found[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
