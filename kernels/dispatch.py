"""Which implementation of an op computes: the fused kernel where it can, the definition everywhere else."""

import functools
import importlib.util
import logging
import os
from collections.abc import Collection

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

IMPLEMENTATIONS = ("auto", "fused", "reference")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""What most fused kernels take on a GPU; they compute in float32."""

_log = logging.getLogger(__name__)


def use_fused(op: str, implementation: str, *tensors: Tensor, dtypes: Collection[torch.dtype] = FLOATS) -> bool:
    """Whether the Triton kernel of ``op`` computes.

    "auto" takes it on CUDA wherever it can, and says once in the log why it cannot; "fused" insists; "reference" takes
    the definition.  Under Triton's interpreter (TRITON_INTERPRET=1) "fused" runs on a CPU too, also in float64, which
    is for tests: "auto" never chooses it there.

    Args:
        op: its name, for messages.
        tensors: everything that the kernel reads.
        dtypes: those of ``tensors`` that the kernel takes.

    Raises:
        ValueError: an unknown implementation, or "fused" where it is not possible; the message has the reason.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, got {implementation!r}")
    if implementation == "reference":
        return False
    insisted = implementation == "fused"
    obstacle = _obstacle(tensors, dtypes, insisted)
    if obstacle is None:
        return True
    if insisted:
        raise ValueError(
            f"{op}: implementation='fused' is not possible: {obstacle}; use implementation='auto' or 'reference'"
        )
    if any(tensor.is_cuda for tensor in tensors):
        _say_once(op, obstacle)
    return False


def _obstacle(tensors: Collection[Tensor], dtypes: Collection[torch.dtype], insisted: bool) -> str | None:
    interpreted = insisted and os.environ.get("TRITON_INTERPRET") == "1"
    places = sorted({str(tensor.device) for tensor in tensors})
    if len(places) > 1:
        return f"tensors on different devices ({', '.join(places)})"
    if not interpreted and not places[0].startswith("cuda"):
        return f"the kernel runs on CUDA, the tensors are on {places[0]}"
    accepted = {*dtypes, torch.float64} if interpreted else {*dtypes}
    odd = sorted({str(tensor.dtype) for tensor in tensors if tensor.dtype not in accepted})
    if odd:
        return f"the kernel does not take {', '.join(odd)}"
    if any(tensor.numel() == 0 for tensor in tensors):
        return "a tensor is empty"
    if peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if torch.compiler.is_compiling():
        return "the compiler fuses the definition itself"
    if not _has_triton():
        return "Triton is not installed (pip install triton)"
    return None


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _say_once(op: str, obstacle: str) -> None:
    _log.warning("%s: computed by its definition, not by its kernel: %s", op, obstacle)
