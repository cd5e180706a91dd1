"""The machine that trains a cell: its section of the config, what a process is set to, and the ranks of its devices.

Several devices train a cell together, a process each.  Slot s of a step's batches is computed by rank s mod W; where
their number is no multiple of W, each rank computes a share of the rows of all.
"""

import contextlib
import ctypes
import os
import platform
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import MachineSettings, count_devices
from paper_repro.kernels.preferences import prefer
from paper_repro.training.tensors import map_tensors

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30
_FALLBACK_BYTES = 32 << 20


class Machine(MachineSettings):
    """The ``machine`` section, and the devices that it means here."""

    @property
    def count(self) -> int:
        """W, the number of devices of all nodes."""
        return self.nodes * count_devices(self.devices)

    def batches_each(self, accumulate: int) -> int:
        """Return how many of an optimiser step's ``accumulate`` batches each device computes."""
        return accumulate if self.shares_rows(accumulate) else accumulate // self.count

    def shares_rows(self, accumulate: int) -> bool:
        return accumulate % self.count > 0

    @property
    def on_cpu(self) -> bool:
        return self.accelerator == "cpu" or (self.accelerator == "auto" and not torch.cuda.is_available())

    @property
    def graphs(self) -> bool:
        return bool(self.cuda_graph) and self.device.type == "cuda"

    @property
    def device(self) -> torch.device:
        """The device of the models; with several devices, the first."""
        return self.device_of(0)

    def device_of(self, local: int) -> torch.device:
        """Return the device of a process from its number on its node; UsageError: there is none."""
        if self.on_cpu:
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise UsageError(
                f"machine.accelerator={self.accelerator!r}, but torch {torch.__version__} sees no GPU here: "
                "set machine=cpu (--device cpu), or install a CUDA build of torch"
            )
        wanted = self.devices if isinstance(self.devices, list) else [*range(self.devices)]
        if max(wanted) >= torch.cuda.device_count():
            raise UsageError(f"machine.devices={self.devices}: there are {torch.cuda.device_count()} GPUs here")
        return torch.device("cuda", wanted[local])


@contextlib.contextmanager
def settings(machine: Machine) -> Iterator[None]:
    """Set threads, TF32 and preferences of ops, flush denormal numbers to zero, and keep freed memory for good."""
    _keep_freed_memory()
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(machine.threads or threads)
    torch.set_flush_denormal(True)
    if machine.tf32 and machine.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        graphs = machine.cuda_graph is True or machine.graphs
        with prefer(implementation=machine.implementation, recompute=machine.recompute, cuda_graph=graphs):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def _keep_freed_memory() -> None:
    """Ask glibc to keep freed blocks, whose return costs page faults at each step, unless ``MALLOC_*`` decides."""
    if platform.libc_ver()[0] == "glibc" and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt = ctypes.CDLL(None).mallopt
        if mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES) or mallopt(_M_MMAP_THRESHOLD, _FALLBACK_BYTES):
            mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)


def forget_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.init()  # without an allocator torch refuses: "Invalid device argument"
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mib(device: torch.device) -> float:
    """Return the most memory used so far, MiB: of torch's CUDA allocator since its reset, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    status = Path("/proc/self/status")
    # On Linux what getrusage says begins with the peak of the process that started this one.
    if status.is_file() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(found[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


# The ranks of several devices.


class Started(LightningEnvironment):
    """Tells Lightning that the processes of this computer are there already."""

    creates_processes_externally = True


@dataclass(frozen=True)
class Rank:
    """One of ``count`` processes."""

    index: int = 0
    count: int = 1
    environment: ClusterEnvironment = field(default_factory=Started)
    """Tells Lightning which of the processes this one is."""
    words: Any = None
    """The process group for messages on the CPU."""

    def share(self, value: int) -> int:
        """Return rank 0's value, on every rank."""
        if self.count == 1:
            return value
        box = torch.tensor([value])
        dist.broadcast(box, 0, group=self.words)
        return int(box)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` over the ranks; does not wait for the device."""
        if self.count == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total / self.count

    def collect(self, own: Mapping[int, Any]) -> dict[int, Any]:
        """Rank 0 receives the trees of all slots, on the CPU; every rank has to call this."""
        if self.count == 1:
            return dict(own)
        boxes: list[Any] | None = None if self.index else [None] * self.count
        dist.gather_object(map_tensors(Tensor.cpu, dict(own)), boxes, group=self.words)
        return {slot: tree for box in boxes or [own] for slot, tree in box.items()}
