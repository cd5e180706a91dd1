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
WITH_CLOSED_FORM = ("auto", "fused", "closed_form", "reference")
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
    check_implementation(implementation, IMPLEMENTATIONS)
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


def use_closed_form(op: str, implementation: str, *tensors: Tensor, one_dtype: bool = True) -> bool:
    """Whether the closed form of ``op``, in plain PyTorch, computes: the way of a CPU that trains.

    "closed_form" insists; "auto" takes it on a CPU where a gradient is asked for.  Neither takes it within a transform
    of torch.func, under torch.compile or without tokens, nor, with ``one_dtype``, for anything but float32 or float64
    throughout.

    Raises:
        ValueError: "closed_form" where it is not possible.
    """
    if implementation not in ("auto", "closed_form"):
        return False
    exact = len({tensor.dtype for tensor in tensors}) == 1 and tensors[0].dtype in (torch.float32, torch.float64)
    possible = (
        (exact or not one_dtype)
        and len({tensor.device for tensor in tensors}) == 1
        and tensors[0].numel() > 0
        and peek_interpreter_stack() is None
        and not torch.compiler.is_compiling()
    )
    if implementation == "auto":
        asked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        return possible and asked and tensors[0].device.type == "cpu"
    if not possible:
        dtypes = "one dtype, float32 or float64, " if one_dtype else ""
        raise ValueError(
            f"{op}: implementation='closed_form' needs {dtypes}one device, tokens, no transform of torch.func and no "
            "compiler: use implementation='auto' or 'reference'"
        )
    return True


def check_implementation(implementation: str, valid: Collection[str]) -> None:
    """Raises ValueError for a word that is not ``valid``."""
    if implementation not in valid:
        raise ValueError(f"implementation must be one of {', '.join(valid)}, got {implementation!r}")


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
