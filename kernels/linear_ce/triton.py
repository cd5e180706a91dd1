"""A piece of logits to its softmax's gradient in place, in Triton: one pass for the normaliser, one that writes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.linear_ce.op import Rows


def softmax_piece(z: Tensor, rows: Rows, start: int, statistics: bool, gradient: bool) -> None:
    """Do as ``closed_form.softmax_piece``; each row of ``z`` may be written up to its stride, which is at least v."""
    block, num_warps = _configuration(z.shape[1])
    with torch.cuda.device_of(z):
        _softmax_piece[(z.shape[0],)](
            z, rows.targets, rows.counted.view(torch.uint8), rows.largest, rows.total, rows.at_target, z.shape[1],
            z.stride(0), start,
            STATISTICS=statistics, GRADIENT=gradient, BLOCK=block,
            num_warps=num_warps,
        )


def _configuration(width: int) -> tuple[int, int]:
    """Choose the words at once, and the warps: 16 entries a thread, for two 16-byte loads of bfloat16 in flight from
    each.
    """
    block = min(triton.next_power_of_2(width), 8192)
    return block, max(1, min(16, block // 512))


@triton.jit
def _softmax_piece(  # type: ignore[no-untyped-def]
    z, targets, counted, largest, total, at_target, width, stride, start,
    STATISTICS: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):
    # Loads and stores are masked by the stride: a multiple of 16, unlike the width, so they stay wide.
    row = tl.program_id(0).to(tl.int64)
    z += row * stride
    columns = tl.arange(0, BLOCK)  # (BLOCK,)
    here = tl.load(targets + row) - start
    counts = tl.load(counted + row) != 0
    top = tl.load(largest + row)
    norm = tl.load(total + row)
    if STATISTICS:
        # Read before the first reduction, whose barrier keeps it ahead of every store of the second pass.
        inside = counts & (here >= 0) & (here < width)
        value = tl.load(z + here, mask=inside, other=0.0).to(top.dtype)
        tl.store(at_target + row, value, mask=inside)
        for first in range(0, width, BLOCK):
            at = first + columns
            values = tl.load(z + at, mask=at < stride, other=0.0).to(top.dtype)  # (BLOCK,)
            values = tl.where(at < width, values, float("-inf"))
            new = tl.maximum(top, tl.max(values, 0))
            norm = norm * tl.exp(top - new) + tl.sum(tl.exp(values - new), 0)
            top = new
        tl.store(largest + row, top)
        tl.store(total + row, norm)
    if GRADIENT:
        for first in range(0, width, BLOCK):
            at = first + columns
            values = tl.load(z + at, mask=at < stride, other=0.0).to(top.dtype)  # (BLOCK,)
            values = tl.where(at < width, values, top)
            values = tl.exp(values - top) / norm - tl.where(at == here, 1.0, 0.0)
            tl.store(z + at, tl.where(counts, values, 0.0).to(z.dtype.element_ty), mask=at < stride)
