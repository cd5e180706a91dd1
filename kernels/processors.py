"""How many multiprocessors a device has, by which kernels that stay choose their number of programs."""

import contextlib
import functools
from collections.abc import Iterator

import torch

_assumed = [1]


def processors(device: torch.device) -> int:
    """Return the number of multiprocessors; off CUDA 1, as Triton's interpreter has, or what ``assume`` says."""
    return _counted(device) if device.type == "cuda" else _assumed[-1]


@contextlib.contextmanager
def assume(count: int) -> Iterator[None]:
    """Let devices that are no GPU have this many multiprocessors, to see what would be launched on one."""
    _assumed.append(count)
    try:
        yield
    finally:
        _assumed.pop()


@functools.cache
def _counted(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
