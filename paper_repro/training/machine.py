"""What the machine section of a config asks for, and what the process is set to while it trains."""

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paper_repro.errors import UsageError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30
_FALLBACK_BYTES = 32 << 20


@dataclass(frozen=True)
class Machine:
    """The keys of ``machine`` that training reads; none of them changes a result.

    Raises:
        UsageError: more than one device for a cell, or a value out of range.
    """

    accelerator: str = "cpu"
    devices: int | list[int] = 1
    strategy: str = "auto"
    threads: int | None = None
    checkpoint_every_seconds: float | None = 20
    checkpoint_every_steps: int | None = None
    progress_every_seconds: float = 0.5

    def __post_init__(self) -> None:
        if self.devices != 1 and not (isinstance(self.devices, list) and len(self.devices) == 1):
            raise UsageError(
                f"machine.devices={self.devices!r}: a cell is trained on one device; set machine.devices=1 "
                "(or [2] for the third GPU) and machine.workers to run several cells side by side"
            )
        for name in ("threads", "checkpoint_every_seconds", "checkpoint_every_steps"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"machine.{name} must be above 0, or null, got {value}")

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> "Machine":
        """From a config's machine section, whose other keys belong to the runner."""
        return cls(**{key: value for key, value in section.items() if key in cls.__dataclass_fields__})

    @property
    def device(self) -> torch.device:
        """Where the models lie.

        Raises:
            UsageError: an accelerator that this machine or this build of torch lacks.
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
                "set machine=cpu, or install a CUDA build of torch"
            )
        index = self.devices[0] if isinstance(self.devices, list) else 0
        return torch.device("cuda", index)


@contextlib.contextmanager
def settings(machine: Machine) -> Iterator[None]:
    """Threads as asked, denormal numbers flushed to zero, freed memory kept; the first two are undone at the end."""
    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(machine.threads or threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def keep_freed_memory() -> bool:
    """Ask glibc not to return freed blocks to the system, which costs a page fault per 4 kB at every training step.

    Where libc is not glibc, or ``MALLOC_*`` in the environment already decides, nothing is done.  The process keeps at
    most its own peak.  Returns whether glibc agreed.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    mapped = mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES) or mallopt(_M_MMAP_THRESHOLD, _FALLBACK_BYTES)
    return bool(mapped and mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))


def peak_memory_mib(device: torch.device) -> float | None:
    """The most memory used so far, MiB: of torch's CUDA allocator since its last reset, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
