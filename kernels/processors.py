"""The properties of a GPU by which kernels choose their tiles and their number of programs."""

import functools
from typing import NamedTuple

import torch


class Device(NamedTuple):
    """A GPU, or one multiprocessor in its place, as for Triton's interpreter."""

    processors: int = 1
    """Multiprocessors."""
    capability: int = 90
    """The compute capability, times 10: 80 for an A100, 90 for an H100."""


@functools.cache
def properties(device: torch.device) -> Device:
    """Return the properties; the defaults off CUDA."""
    if device.type != "cuda":
        return Device()
    found = torch.cuda.get_device_properties(device)
    return Device(found.multi_processor_count, 10 * found.major + found.minor)
