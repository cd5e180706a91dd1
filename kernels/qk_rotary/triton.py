"""Rotated rows in one launch of Triton, and their gradients in another: every element read once and written once.

A program takes some heads of a token, then of every so many-th token.  The backward pass turns again instead of keeping
anything.  With r the turned row, n = r / |r|, y = s n and G the gradient of y,

    ds = sum n G,   dn = s G,   dr = (dn - n (n . dn)) / |r|,   da = cos dr_a + sin_second dr_b,
                                                                db = cos dr_b - sin_first dr_a

where the sum goes over tokens: in registers, then over programs in a fixed order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.kernels.triton import TYPES, WARPS_BACKWARD, WARPS_FORWARD, processors, warps_of, with_contiguous_rows
from paper_repro.models.common import wide

TILE = 1024
"""Entries of a tile."""
LEAST_HEADS = 4
"""A tile has at least so many, of which some may be missing, rather than reading the tables for each head or two."""


class RotationGradient(FirstOrder):
    """The gradients of x (B, T, H, Y), the tables (None) and scale, given G of the result."""

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, cos: Tensor, first: Tensor, second: Tensor, *given: Any) -> Any:
        scale, normalize = given
        x, gradient = with_contiguous_rows(x), with_contiguous_rows(gradient)
        grid, constants = _launched(x, (cos, first, second), scale, normalize, WARPS_BACKWARD)
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dtype = wide(*(value for value in (x, cos, first, second, scale) if value is not None))
        shape = (0,) if scale is None else (grid[0], *x.shape[2:])
        partial = torch.empty(shape, dtype=dtype, device=x.device)  # (programs, H, Y)
        with torch.cuda.device_of(x):
            _backward[grid](
                x, gradient, dx, *(table.contiguous() for table in (cos, first, second)),
                x if scale is None else scale.contiguous(), partial, *x.stride()[:3], *gradient.stride()[:3],
                x.shape[0] * x.shape[1], *x.shape[1:3], **constants,
            )
        return dx, None, None, None, None if scale is None else partial.sum(0).to(scale.dtype)


class Rotation(WithGradient):
    """Maps x (B, T, H, Y), the tables, scale (H, Y) or None and ``normalize`` to (B, T, H, Y)."""

    gradient = RotationGradient

    @staticmethod
    def forward(
        x: Tensor, cos: Tensor, first: Tensor, second: Tensor, scale: Tensor | None, normalize: bool
    ) -> Tensor:
        x = with_contiguous_rows(x)
        grid, constants = _launched(x, (cos, first, second), scale, normalize, WARPS_FORWARD)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        with torch.cuda.device_of(x):
            _forward[grid](
                x, out, *(table.contiguous() for table in (cos, first, second)),
                x if scale is None else scale.contiguous(), *x.stride()[:3],
                x.shape[0] * x.shape[1], *x.shape[1:3], **constants,
            )
        return out


def _launched(
    x: Tensor, tables: tuple[Tensor, ...], scale: Tensor | None, normalize: bool, warps_per_processor: int
) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the grid, programs that share the tokens of all sequences and tiles of a token, and the constants."""
    batch, tokens, heads, width = x.shape
    block, divisor = triton.next_power_of_2(width), heads & -heads
    taken = min(max(1, TILE // block), divisor if divisor >= LEAST_HEADS else triton.next_power_of_2(heads))
    warps, tiles = warps_of(taken * block), triton.cdiv(heads, taken)
    programs = processors(x.device) * max(1, warps_per_processor // warps)
    dtype = wide(x, *tables, *([] if scale is None else [scale]))
    return (min(batch * tokens, max(1, programs // tiles)), tiles), {
        "WIDE": TYPES[dtype], "SCALED": scale is not None, "NORMALIZE": normalize,
        "WIDTH": width, "HEADS": taken, "BLOCK": block, "num_warps": warps,
    }


@triton.jit
def _load(x, at, inside, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(x + at, mask=inside, other=0.0).to(WIDE)


@triton.jit
def _load_table(table, token, WIDE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the factors of one position, (1, BLOCK/2)."""
    pair = tl.arange(0, BLOCK // 2)
    return tl.load(table + token * (WIDTH // 2) + pair, mask=pair < WIDTH // 2, other=0.0).to(WIDE)[None, :]


@triton.jit
def _pairs(x, HEADS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load first and second elements of the pairs, (HEADS, BLOCK/2) each."""
    return tl.split(tl.reshape(x, (HEADS, BLOCK // 2, 2)))


@triton.jit
def _inverse_norm(a, b, present):  # type: ignore[no-untyped-def]
    return (1.0 / tl.sqrt(tl.where(present, tl.sum(a * a + b * b, axis=1), 1.0)))[:, None]


@triton.jit
def _load_scale(  # type: ignore[no-untyped-def]
    scale, at, inside, SCALED: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    """Load both halves of the pairs' scales, (HEADS, BLOCK/2); ones without a scale."""
    values = _load(scale, at, inside, WIDE) if SCALED else tl.full((HEADS, BLOCK), 1.0, WIDE)
    return _pairs(values, HEADS, BLOCK)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, out, cos_table, first_table, second_table, scale, by_batch, by_token, by_head, count, tokens, heads,
    WIDE: tl.constexpr, SCALED: tl.constexpr, NORMALIZE: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, BLOCK)[None, :]
    present = head < heads
    inside = present[:, None] & (column < WIDTH)
    head = head[:, None]
    scale_a, scale_b = _load_scale(scale, head * WIDTH + column, inside, SCALED, WIDE, HEADS, BLOCK)
    for place in range(tl.program_id(0), count, tl.num_programs(0)):
        sequence = (place // tokens).to(tl.int64)
        token = (place % tokens).to(tl.int64)
        row = _load(x, sequence * by_batch + token * by_token + head * by_head + column, inside, WIDE)
        cos = _load_table(cos_table, token, WIDE, WIDTH, BLOCK)  # (1, BLOCK/2)
        first = _load_table(first_table, token, WIDE, WIDTH, BLOCK)
        second = _load_table(second_table, token, WIDE, WIDTH, BLOCK)
        a, b = _pairs(row, HEADS, BLOCK)  # (HEADS, BLOCK/2) each
        turned_a = cos * a - first * b
        turned_b = second * a + cos * b
        if NORMALIZE:
            inverse = _inverse_norm(turned_a, turned_b, present)
            turned_a *= inverse
            turned_b *= inverse
        row = tl.interleave(turned_a * scale_a, turned_b * scale_b)  # (HEADS, BLOCK)
        into = (sequence * tokens + token) * heads * WIDTH + head * WIDTH + column
        tl.store(out + into, row.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    x, gradient, out, cos_table, first_table, second_table, scale, partial,
    by_batch, by_token, by_head, gradient_batch, gradient_token, gradient_head, count, tokens, heads,
    WIDE: tl.constexpr, SCALED: tl.constexpr, NORMALIZE: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, BLOCK)[None, :]
    present = head < heads
    inside = present[:, None] & (column < WIDTH)
    head = head[:, None]
    scale_a, scale_b = _load_scale(scale, head * WIDTH + column, inside, SCALED, WIDE, HEADS, BLOCK)
    total_a = tl.zeros((HEADS, BLOCK // 2), WIDE)  # (HEADS, BLOCK/2)
    total_b = tl.zeros((HEADS, BLOCK // 2), WIDE)
    for place in range(tl.program_id(0), count, tl.num_programs(0)):
        sequence = (place // tokens).to(tl.int64)
        token = (place % tokens).to(tl.int64)
        row = _load(x, sequence * by_batch + token * by_token + head * by_head + column, inside, WIDE)
        at = sequence * gradient_batch + token * gradient_token + head * gradient_head + column
        G = _load(gradient, at, inside, WIDE)  # (HEADS, BLOCK)
        cos = _load_table(cos_table, token, WIDE, WIDTH, BLOCK)  # (1, BLOCK/2)
        first = _load_table(first_table, token, WIDE, WIDTH, BLOCK)
        second = _load_table(second_table, token, WIDE, WIDTH, BLOCK)
        a, b = _pairs(row, HEADS, BLOCK)  # (HEADS, BLOCK/2) each
        G_a, G_b = _pairs(G, HEADS, BLOCK)
        n_a = cos * a - first * b
        n_b = second * a + cos * b
        d_a = scale_a * G_a
        d_b = scale_b * G_b
        if NORMALIZE:
            inverse = _inverse_norm(n_a, n_b, present)
            n_a *= inverse
            n_b *= inverse
            along = tl.sum(n_a * d_a + n_b * d_b, axis=1)[:, None]  # (HEADS, 1)
            d_a = (d_a - n_a * along) * inverse
            d_b = (d_b - n_b * along) * inverse
        dx = tl.interleave(cos * d_a + second * d_b, cos * d_b - first * d_a)  # (HEADS, BLOCK)
        into = (sequence * tokens + token) * heads * WIDTH + head * WIDTH + column
        tl.store(out + into, dx.to(out.dtype.element_ty), mask=inside)
        total_a += n_a * G_a
        total_b += n_b * G_b
    if SCALED:
        into = (tl.program_id(0).to(tl.int64) * heads + head) * WIDTH + column
        tl.store(partial + into, tl.interleave(total_a, total_b), mask=inside)
