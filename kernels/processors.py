"""The properties of a device by which kernels choose their tiles and their number of programs."""

import contextlib
import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch


class Device(NamedTuple):
    """A GPU, or what stands for one."""

    processors: int
    """Multiprocessors."""
    capability: int
    """The compute capability, times 10: 80 for an A100, 90 for an H100."""


_assumed = [Device(1, 90)]


def properties(device: torch.device) -> Device:
    """Return the properties; off CUDA what ``assume`` says, without it one multiprocessor, as Triton's interpreter."""
    return _found(device) if device.type == "cuda" else _assumed[-1]


def processors(device: torch.device) -> int:
    """Return the number of multiprocessors; off CUDA as ``properties``."""
    return properties(device).processors


@contextlib.contextmanager
def assume(device: Device) -> Iterator[None]:
    """Let devices that are no GPU have these properties, to see what would be launched on one."""
    _assumed.append(device)
    try:
        yield
    finally:
        _assumed.pop()


@functools.cache
def _found(device: torch.device) -> Device:
    found = torch.cuda.get_device_properties(device)
    return Device(found.multi_processor_count, 10 * found.major + found.minor)
