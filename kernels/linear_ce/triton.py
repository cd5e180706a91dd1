"""The losses of logits, and their softmax's gradient in place, in Triton: one pass for the normaliser, one to write.

A program takes a row, up to 8,192 words at a time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.linear_ce.op import IGNORED


def softmax(z: Tensor, targets: Tensor, gradient: bool) -> Tensor:
    """Do as ``op.softmax``; each row of ``z`` may be written up to its stride, which is at least V."""
    # 16 entries a thread: two 16-byte loads of bfloat16 are in flight from each.
    block = min(triton.next_power_of_2(z.shape[1]), 8192)
    losses = torch.empty(len(z), dtype=torch.promote_types(z.dtype, torch.float32), device=z.device)
    with torch.cuda.device_of(z):
        _softmax[(len(z),)](
            z, targets, losses, z.shape[1], z.stride(0), IGNORED,
            GRADIENT=gradient, BLOCK=block, num_warps=max(1, min(16, block // 512)),
        )
    return losses


@triton.jit
def _softmax(  # type: ignore[no-untyped-def]
    z, targets, losses, width, stride, ignore_index, GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):
    # Loads and stores are masked by the stride: a multiple of 16, unlike the width, so they stay wide.
    row = tl.program_id(0).to(tl.int64)
    z += row * stride
    columns = tl.arange(0, BLOCK)  # (BLOCK,)
    here = tl.load(targets + row)
    counts = here != ignore_index
    inside = counts & (here >= 0) & (here < width)
    # Read before the first reduction, whose barrier keeps it ahead of every store of the second pass.
    at_target = tl.load(z + here, mask=inside, other=float("nan")).to(losses.dtype.element_ty)
    top = tl.full((), float("-inf"), losses.dtype.element_ty)
    norm = tl.full((), 0.0, losses.dtype.element_ty)
    for first in range(0, width, BLOCK):
        at = first + columns
        values = tl.load(z + at, mask=at < stride, other=0.0).to(top.dtype)  # (BLOCK,)
        values = tl.where(at < width, values, float("-inf"))
        new = tl.maximum(top, tl.max(values, 0))
        norm = norm * tl.exp(top - new) + tl.sum(tl.exp(values - new), 0)
        top = new
    tl.store(losses + row, tl.where(counts, top + tl.log(norm) - at_target, 0.0))
    if GRADIENT:
        for first in range(0, width, BLOCK):
            at = first + columns
            values = tl.load(z + at, mask=at < stride, other=0.0).to(top.dtype)  # (BLOCK,)
            values = tl.where(at < width, values, top)
            values = tl.exp(values - top) / norm - tl.where(at == here, 1.0, 0.0)
            tl.store(z + at, tl.where(counts, values, 0.0).to(z.dtype.element_ty), mask=at < stride)
