"""nGPT's scaled SwiGLU in Triton: one pass forward, one backward, which saves nothing but the pre-activations.

A program takes some columns of some tokens; sums of the scales' gradients stay in registers, are written once per
program and added by PyTorch, in the same order each time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.kernels.triton import TYPES, with_contiguous_rows
from paper_repro.models.common import wide

PROGRAMS = 4096
"""Programs at most: several for each place on a GPU's multiprocessors."""


class ScaledSwiGLUGradient(FirstOrder):
    """The gradients of pre, s_u and s_nu, given G (N, M)."""

    @staticmethod
    def forward(gradient: Tensor, pre: Tensor, scale_u: Tensor, scale_nu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient, pre = with_contiguous_rows(gradient), with_contiguous_rows(pre)
        scale_u, scale_nu = scale_u.contiguous(), scale_nu.contiguous()
        tokens, half = gradient.shape
        block, groups, num_warps = _configuration(tokens, half)
        dpre = pre.new_empty(pre.shape)  # (N, 2M)
        sums = pre.new_empty(2, groups, half, dtype=wide(pre))  # (2, groups, M)
        with torch.cuda.device_of(pre):
            _backward[(groups, triton.cdiv(half, block))](
                gradient, pre, scale_u, scale_nu, dpre, sums[0], sums[1], tokens, half, gradient.stride(0),
                pre.stride(0), groups, EXACT=TYPES[wide(pre)], BLOCK=block, num_warps=num_warps,
            )
        return dpre, sums[0].sum(0).to(scale_u.dtype), sums[1].sum(0).to(scale_nu.dtype)


class ScaledSwiGLU(WithGradient):
    """pre (N, 2M), s_u and s_nu (M): (N, M) in the dtype of ``pre``."""

    gradient = ScaledSwiGLUGradient

    @staticmethod
    def forward(pre: Tensor, scale_u: Tensor, scale_nu: Tensor) -> Tensor:
        pre, scale_u, scale_nu = with_contiguous_rows(pre), scale_u.contiguous(), scale_nu.contiguous()
        tokens, half = pre.shape[0], pre.shape[1] // 2
        out = pre.new_empty(tokens, half)  # (N, M)
        block, groups, num_warps = _configuration(tokens, half)
        with torch.cuda.device_of(pre):
            _forward[(groups, triton.cdiv(half, block))](
                pre, scale_u, scale_nu, out, tokens, half, pre.stride(0), groups,
                EXACT=TYPES[wide(pre)], BLOCK=block, num_warps=num_warps,
            )
        return out


def _configuration(tokens: int, half: int) -> tuple[int, int, int]:
    """Choose the columns of a program, groups of tokens, and warps."""
    block = min(triton.next_power_of_2(half), 1024)
    groups = min(tokens, max(1, PROGRAMS // triton.cdiv(half, block)))
    return block, groups, max(1, block // 256)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    pre, scale_u, scale_nu, out, tokens, half, stride, groups,
    EXACT: tl.constexpr, BLOCK: tl.constexpr,
):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < half
    s_u = tl.load(scale_u + columns, mask=mask, other=0.0).to(EXACT)  # (BLOCK,)
    s_nu = tl.load(scale_nu + columns, mask=mask, other=0.0).to(EXACT)
    for token in range(tl.program_id(0), tokens, groups):
        row = pre + tl.cast(token, tl.int64) * stride
        u = tl.load(row + columns, mask=mask, other=0.0).to(EXACT)  # (BLOCK,)
        x = tl.load(row + half + columns, mask=mask, other=0.0).to(EXACT) * s_nu
        found = u * s_u * x / (1.0 + tl.exp(-x))
        tl.store(out + tl.cast(token, tl.int64) * half + columns, found.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    gradient, pre, scale_u, scale_nu, dpre, sums_u, sums_nu, tokens, half, gradient_stride, stride, groups,
    EXACT: tl.constexpr, BLOCK: tl.constexpr,
):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < half
    s_u = tl.load(scale_u + columns, mask=mask, other=0.0).to(EXACT)  # (BLOCK,)
    s_nu = tl.load(scale_nu + columns, mask=mask, other=0.0).to(EXACT)
    sum_u = tl.zeros([BLOCK], EXACT)  # (BLOCK,)
    sum_nu = tl.zeros([BLOCK], EXACT)
    for token in range(tl.program_id(0), tokens, groups):
        index = tl.cast(token, tl.int64)
        row = pre + index * stride
        into = dpre + index * half * 2
        g = tl.load(gradient + index * gradient_stride + columns, mask=mask, other=0.0).to(EXACT)
        u = tl.load(row + columns, mask=mask, other=0.0).to(EXACT)  # (BLOCK,)
        nu = tl.load(row + half + columns, mask=mask, other=0.0).to(EXACT)
        x = nu * s_nu
        sigmoid = 1.0 / (1.0 + tl.exp(-x))
        up = g * x * sigmoid
        through = g * u * s_u * sigmoid * (1.0 + x * (1.0 - sigmoid))
        sum_u += up * u
        sum_nu += through * nu
        tl.store(into + columns, (up * s_u).to(dpre.dtype.element_ty), mask=mask)
        tl.store(into + half + columns, (through * s_nu).to(dpre.dtype.element_ty), mask=mask)
    place = tl.program_id(0) * half + columns
    tl.store(sums_u + place, sum_u, mask=mask)
    tl.store(sums_nu + place, sum_nu, mask=mask)
