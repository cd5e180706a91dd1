"""nGPT's scaled SwiGLU in Triton: one pass forward, one backward, which saves nothing but the pre-activations.

A program takes some columns of some tokens; sums of the scales' gradients stay in registers, are written once per
program and added by PyTorch, in the same order each time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.kernels.triton import TYPES
from paper_repro.models.common import wide

PROGRAMS = 4096
"""Programs at most: several for each place on a GPU's multiprocessors."""


class ScaledSwiGLUGradient(FirstOrder):
    """The gradients of pre, s_u and s_nu, given G (N, M)."""

    @staticmethod
    def forward(
        gradient: Tensor, pre: Tensor, scale_u: Tensor | None, scale_nu: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        gradient, pre = _rows(gradient), _rows(pre)
        tokens, half = gradient.shape
        block, groups, num_warps = _configuration(tokens, half)
        dpre = pre.new_empty(pre.shape)  # (N, 2M)
        scaled = scale_u is not None or scale_nu is not None
        sums = pre.new_empty(2, groups if scaled else 0, half, dtype=wide(pre))  # (2, groups, M)
        with torch.cuda.device_of(pre):
            _backward[(groups, triton.cdiv(half, block))](
                gradient, pre, _or(scale_u, pre), _or(scale_nu, pre), dpre, sums[0], sums[1], tokens, half,
                gradient.stride(0), pre.stride(0), groups,
                SCALED_U=scale_u is not None, SCALED_NU=scale_nu is not None, EXACT=TYPES[wide(pre)], BLOCK=block,
                num_warps=num_warps,
            )
        dscale_u, dscale_nu = (
            None if scale is None else part.sum(0).to(scale.dtype)
            for scale, part in zip((scale_u, scale_nu), sums, strict=True)
        )
        return dpre, dscale_u, dscale_nu


class ScaledSwiGLU(WithGradient):
    """pre (N, 2M), s_u and s_nu (M) or None: (N, M) in the dtype of ``pre``."""

    gradient = ScaledSwiGLUGradient

    @staticmethod
    def forward(pre: Tensor, scale_u: Tensor | None, scale_nu: Tensor | None) -> Tensor:
        pre = _rows(pre)
        tokens, half = pre.shape[0], pre.shape[1] // 2
        out = pre.new_empty(tokens, half)  # (N, M)
        block, groups, num_warps = _configuration(tokens, half)
        with torch.cuda.device_of(pre):
            _forward[(groups, triton.cdiv(half, block))](
                pre, _or(scale_u, pre), _or(scale_nu, pre), out, tokens, half, pre.stride(0), groups,
                SCALED_U=scale_u is not None, SCALED_NU=scale_nu is not None, EXACT=TYPES[wide(pre)], BLOCK=block,
                num_warps=num_warps,
            )
        return out


def _configuration(tokens: int, half: int) -> tuple[int, int, int]:
    """Choose the columns of a program, groups of tokens, and warps."""
    block = min(triton.next_power_of_2(half), 1024)
    groups = min(tokens, max(1, PROGRAMS // triton.cdiv(half, block)))
    return block, groups, max(1, block // 256)


def _rows(value: Tensor) -> Tensor:
    return value if value.stride(1) == 1 else value.contiguous()


def _or(scale: Tensor | None, other: Tensor) -> Tensor:
    """Return a pointer that is not read where there is no scale."""
    return other if scale is None else scale.contiguous()


@triton.jit
def _load_scale(scale, columns, mask, SCALED: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the scales of some columns, (BLOCK,); ones without them."""
    if SCALED:
        return tl.load(scale + columns, mask=mask, other=0.0).to(EXACT)
    return tl.full([BLOCK], 1.0, EXACT)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    pre, scale_u, scale_nu, out, tokens, half, stride, groups,
    SCALED_U: tl.constexpr, SCALED_NU: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < half
    s_u = _load_scale(scale_u, columns, mask, SCALED_U, EXACT, BLOCK)  # (BLOCK,)
    s_nu = _load_scale(scale_nu, columns, mask, SCALED_NU, EXACT, BLOCK)
    for token in range(tl.program_id(0), tokens, groups):
        row = pre + tl.cast(token, tl.int64) * stride
        u = tl.load(row + columns, mask=mask, other=0.0).to(EXACT)  # (BLOCK,)
        x = tl.load(row + half + columns, mask=mask, other=0.0).to(EXACT) * s_nu
        found = u * s_u * x / (1.0 + tl.exp(-x))
        tl.store(out + tl.cast(token, tl.int64) * half + columns, found.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    gradient, pre, scale_u, scale_nu, dpre, sums_u, sums_nu, tokens, half, gradient_stride, stride, groups,
    SCALED_U: tl.constexpr, SCALED_NU: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < half
    s_u = _load_scale(scale_u, columns, mask, SCALED_U, EXACT, BLOCK)  # (BLOCK,)
    s_nu = _load_scale(scale_nu, columns, mask, SCALED_NU, EXACT, BLOCK)
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
    if SCALED_U:
        tl.store(sums_u + place, sum_u, mask=mask)
    if SCALED_NU:
        tl.store(sums_nu + place, sum_nu, mask=mask)
