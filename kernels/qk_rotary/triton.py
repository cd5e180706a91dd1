"""One launch for queries and keys in Triton, and one for their gradients: every element read once and written once.

A program takes some heads of a token, then of every so many-th token: it reads the scales once and each token's tables
once for both.  The backward pass turns again instead of keeping anything.  With r the turned row, n = r / |r|,
y = s n and G the gradient of y,

    ds = sum n G,   dn = s G,   dr = (dn - n (n . dn)) / |r|,   da = cos dr_a + sin_second dr_b,
                                                                db = cos dr_b - sin_first dr_a

where the sum goes over tokens, queries and keys: in registers, then over programs in a fixed order.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.dispatch import wide
from paper_repro.kernels.first_order import FirstOrder
from paper_repro.kernels.qk_rotary.op import RotaryTables
from paper_repro.kernels.triton import TYPES, properties

TILE, PER_THREAD = 1024, 8
"""Entries of a tile; entries a thread holds of each operand: one 16-byte load of bfloat16."""
WARPS_FORWARD, WARPS_BACKWARD = 64, 32
"""Warps per multiprocessor: what covers the latency of memory; the backward pass has twice the registers."""
LEAST_HEADS = 4
"""A tile has at least so many, of which some may be missing, rather than reading the tables for each head or two."""


class Configuration(NamedTuple):
    """How the rows of one token are laid on programs."""

    heads: int
    """In a tile."""
    block: int
    """Columns of a tile: the next power of two of the head width."""
    warps: int
    grid: tuple[int, int]
    """Programs that share the tokens, and tiles of a token."""


def rotate(
    inputs: tuple[Tensor, ...], tables: RotaryTables, scale: Tensor | None, normalize: bool
) -> tuple[Tensor, ...]:
    """See ``kernels.qk_rotary.rotate``; one or two inputs (B, T, H, Y)."""
    return tuple(x.transpose(1, 2) for x in Rotation.apply(*tables, scale, normalize, *inputs))


class Rotation(FirstOrder):
    """Maps the tables, scale, ``normalize`` and one or two inputs (B, T, H, Y) to as many results (B, T, H, Y)."""

    @staticmethod
    def forward(
        cos: Tensor, first: Tensor, second: Tensor, scale: Tensor | None, normalize: bool, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        inputs = tuple(_with_contiguous_rows(x) for x in inputs)
        batch, tokens, heads, width = inputs[0].shape
        outputs = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs)
        config = configuration(batch * tokens, heads, width, WARPS_FORWARD, inputs[0].device)
        with torch.cuda.device_of(inputs[0]):
            _forward[config.grid](
                inputs[0], inputs[-1], outputs[0], outputs[-1],
                *(table.contiguous() for table in (cos, first, second)),
                inputs[0] if scale is None else scale.contiguous(), *inputs[0].stride()[:3], *inputs[-1].stride()[:3],
                batch * tokens, tokens, heads,
                **_constants(inputs, (cos, first, second), scale, normalize, config),
            )
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:4], *inputs[5:])
        ctx.normalize = inputs[4]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        cos, first, second, scale, *inputs = ctx.saved_tensors
        dscale, *dinputs = RotationGradient.apply(cos, first, second, scale, ctx.normalize, *inputs, *gradients)
        return None, None, None, None if scale is None else dscale, None, *dinputs


class RotationGradient(FirstOrder):
    """The gradients of scale (empty without one) and the inputs; given the inputs, then G of each, (B, T, H, Y)."""

    @staticmethod
    def forward(
        cos: Tensor, first: Tensor, second: Tensor, scale: Tensor | None, normalize: bool, *given: Tensor
    ) -> tuple[Tensor, ...]:
        rows = [_with_contiguous_rows(x) for x in given]
        inputs, gradients = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        batch, tokens, heads, width = inputs[0].shape
        config = configuration(batch * tokens, heads, width, WARPS_BACKWARD, inputs[0].device)
        tables = tuple(table.contiguous() for table in (cos, first, second))
        dinputs = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs)
        constants = _constants(tuple(inputs), tables, scale, normalize, config)
        shape = (0,) if scale is None else (config.grid[0], heads, width)
        dtype = wide(*inputs, *tables, *([] if scale is None else [scale]))
        partial = torch.empty(shape, dtype=dtype, device=inputs[0].device)  # (programs, H, Y)
        with torch.cuda.device_of(inputs[0]):
            _backward[config.grid](
                inputs[0], inputs[-1], gradients[0], gradients[-1], dinputs[0], dinputs[-1], *tables,
                inputs[0] if scale is None else scale.contiguous(), partial, *inputs[0].stride()[:3],
                *inputs[-1].stride()[:3], *gradients[0].stride()[:3], *gradients[-1].stride()[:3], batch * tokens,
                tokens, heads,
                **constants,
            )
        return partial if scale is None else partial.sum(0).to(scale.dtype), *dinputs


def configuration(tokens: int, heads: int, width: int, warps_per_processor: int, device: torch.device) -> Configuration:
    """Choose the launch for this many tokens, in all sequences, of H heads of Y."""
    block = triton.next_power_of_2(width)
    divisor = heads & -heads
    taken = min(max(1, TILE // block), divisor if divisor >= LEAST_HEADS else triton.next_power_of_2(heads))
    warps = min(max(taken * block // PER_THREAD // 32, 1), 16)
    tiles = triton.cdiv(heads, taken)
    programs = properties(device).processors * max(1, warps_per_processor // warps)
    return Configuration(taken, block, warps, (min(tokens, max(1, programs // tiles)), tiles))


def _with_contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _constants(
    inputs: tuple[Tensor, ...], tables: tuple[Tensor, ...], scale: Tensor | None, normalize: bool,
    config: Configuration,
) -> dict[str, Any]:
    dtype = wide(*inputs, *tables, *([] if scale is None else [scale]))
    return {
        "WIDE": TYPES[dtype],
        "BOTH": len(inputs) == 2,
        "SCALED": scale is not None,
        "NORMALIZE": normalize,
        "WIDTH": inputs[0].shape[-1],
        "HEADS": config.heads,
        "BLOCK": config.block,
        "num_warps": config.warps,
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
def _turned(  # type: ignore[no-untyped-def]
    x, cos, first, second, scale_a, scale_b, present, NORMALIZE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    """Compute y of a tile x, (HEADS, BLOCK)."""
    a, b = _pairs(x, HEADS, BLOCK)  # (HEADS, BLOCK/2) each
    turned_a = cos * a - first * b
    turned_b = second * a + cos * b
    if NORMALIZE:
        inverse = _inverse_norm(turned_a, turned_b, present)
        turned_a *= inverse
        turned_b *= inverse
    return tl.interleave(turned_a * scale_a, turned_b * scale_b)


@triton.jit
def _turned_back(  # type: ignore[no-untyped-def]
    x, G, cos, first, second, scale_a, scale_b, present,
    NORMALIZE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):
    """Compute dx of a tile, (HEADS, BLOCK), and both halves of n G, (HEADS, BLOCK/2)."""
    a, b = _pairs(x, HEADS, BLOCK)  # (HEADS, BLOCK/2) each
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
    return tl.interleave(cos * d_a + second * d_b, cos * d_b - first * d_a), n_a * G_a, n_b * G_b


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    query, key, query_out, key_out, cos_table, first_table, second_table, scale, query_batch, query_token, query_head,
    key_batch, key_token, key_head, count, tokens, heads,
    WIDE: tl.constexpr, BOTH: tl.constexpr, SCALED: tl.constexpr, NORMALIZE: tl.constexpr, WIDTH: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr,
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
        at = sequence * query_batch + token * query_token + head * query_head + column
        q = _load(query, at, inside, WIDE)  # (HEADS, BLOCK)
        if BOTH:
            at = sequence * key_batch + token * key_token + head * key_head + column
            k = _load(key, at, inside, WIDE)  # (HEADS, BLOCK)
        cos = _load_table(cos_table, token, WIDE, WIDTH, BLOCK)  # (1, BLOCK/2)
        first = _load_table(first_table, token, WIDE, WIDTH, BLOCK)
        second = _load_table(second_table, token, WIDE, WIDTH, BLOCK)
        into = (sequence * tokens + token) * heads * WIDTH + head * WIDTH + column
        q = _turned(q, cos, first, second, scale_a, scale_b, present, NORMALIZE, HEADS, BLOCK)
        tl.store(query_out + into, q.to(query_out.dtype.element_ty), mask=inside)
        if BOTH:
            k = _turned(k, cos, first, second, scale_a, scale_b, present, NORMALIZE, HEADS, BLOCK)
            tl.store(key_out + into, k.to(key_out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    query, key, query_gradient, key_gradient, query_out, key_out, cos_table, first_table, second_table, scale, partial,
    query_batch, query_token, query_head, key_batch, key_token, key_head, query_gradient_batch, query_gradient_token,
    query_gradient_head, key_gradient_batch, key_gradient_token, key_gradient_head, count, tokens, heads,
    WIDE: tl.constexpr, BOTH: tl.constexpr, SCALED: tl.constexpr, NORMALIZE: tl.constexpr, WIDTH: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr,
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
        at = sequence * query_batch + token * query_token + head * query_head + column
        q = _load(query, at, inside, WIDE)  # (HEADS, BLOCK)
        at = sequence * query_gradient_batch + token * query_gradient_token + head * query_gradient_head + column
        q_G = _load(query_gradient, at, inside, WIDE)
        if BOTH:
            at = sequence * key_batch + token * key_token + head * key_head + column
            k = _load(key, at, inside, WIDE)  # (HEADS, BLOCK)
            at = sequence * key_gradient_batch + token * key_gradient_token + head * key_gradient_head + column
            k_G = _load(key_gradient, at, inside, WIDE)
        cos = _load_table(cos_table, token, WIDE, WIDTH, BLOCK)  # (1, BLOCK/2)
        first = _load_table(first_table, token, WIDE, WIDTH, BLOCK)
        second = _load_table(second_table, token, WIDE, WIDTH, BLOCK)
        into = (sequence * tokens + token) * heads * WIDTH + head * WIDTH + column
        dx, part_a, part_b = _turned_back(
            q, q_G, cos, first, second, scale_a, scale_b, present, NORMALIZE, HEADS, BLOCK
        )
        tl.store(query_out + into, dx.to(query_out.dtype.element_ty), mask=inside)
        total_a += part_a
        total_b += part_b
        if BOTH:
            dx, part_a, part_b = _turned_back(
                k, k_G, cos, first, second, scale_a, scale_b, present, NORMALIZE, HEADS, BLOCK
            )
            tl.store(key_out + into, dx.to(key_out.dtype.element_ty), mask=inside)
            total_a += part_a
            total_b += part_b
    if SCALED:
        into = (tl.program_id(0).to(tl.int64) * heads + head) * WIDTH + column
        tl.store(partial + into, tl.interleave(total_a, total_b), mask=inside)


@triton.jit
def _load_scale(  # type: ignore[no-untyped-def]
    scale, at, inside, SCALED: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    """Load both halves of the pairs' scales, (HEADS, BLOCK/2); ones without a scale."""
    values = _load(scale, at, inside, WIDE) if SCALED else tl.full((HEADS, BLOCK), 1.0, WIDE)
    return _pairs(values, HEADS, BLOCK)
