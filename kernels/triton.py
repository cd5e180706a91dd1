"""What the Triton kernels of several ops share: types, precision and the size of a GPU."""

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import triton.language as tl
from triton.runtime import interpreter, jit

from paper_repro.models.common import wide

TYPES = {torch.float32: tl.float32, torch.float64: tl.float64, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


WARPS_FORWARD, WARPS_BACKWARD = 64, 32
"""Warps per multiprocessor: what covers the latency of memory; a backward pass has twice the registers."""
PER_THREAD = 8
"""Entries that a thread holds of each operand: one 16-byte load of bfloat16."""


def warps_of(entries: int) -> int:
    """Return the warps of a program that holds so many entries of each operand."""
    return min(max(entries // PER_THREAD // 32, 1), 16)


def with_contiguous_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x, copied where the numbers of a row lie apart."""
    return x if x.stride(-1) == 1 else x.contiguous()


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors; 1 off CUDA, for Triton's interpreter."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def product_constants(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the types and the precision in which a kernel multiplies matrices of the tensor's dtype.

    Sums are float32 (float64 for float64).  TF32 is used only where torch.set_float32_matmul_precision allows it.
    Triton's interpreter gets bfloat16 products wrong: there factors are wide.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    exact = tensor.dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
    return {
        "WIDE": TYPES[wide(tensor)],
        "DOT": TYPES[wide(tensor) if interpreted else tensor.dtype],
        "PRECISION": "ieee" if exact else "tf32",
    }


@contextlib.contextmanager
def no_launches() -> Iterator[None]:
    """Launch no kernel within this scope, neither compiled nor interpreted."""
    with contextlib.ExitStack() as stack:
        for kind in (jit.JITFunction, interpreter.InterpretedFunction):
            stack.enter_context(mock.patch.object(kind, "run", lambda *_, **__: None))
        yield
