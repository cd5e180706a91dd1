"""The observed columns in Triton: a program takes some rows of a head, or some columns; formulas: see ``op``.

Scores are computed anew in each pass.  The gradient goes over columns for dq, then over rows for dk and dv.  Its own
gradient goes over the columns twice, for T and for what needs T; R needs T too, and is taken out of the sum that needs
it: r k = (ds u + p w) k - R p k.  The last kernel goes over rows.  Every sum has a fixed order; nothing is added
atomically.

Legend: B sequences, H heads, N samples, T tokens, Y channels of a head, Z channels of its values.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.self_slot_attention.op import Cotangents, Curvature, Observed, OwnRows
from paper_repro.kernels.triton import product_constants
from paper_repro.models.common import wide

LEAST = 16
"""Rows, columns or channels that a matrix product takes at least."""


def forward(given: Observed) -> tuple[Tensor, Tensor]:
    """Compute o (B, H, N T, Z) and lse (B, H, N T, 1), in float32 at least."""
    program = Program(given)
    out, lse = program.rows(given.values.shape[3]), program.rows(1)  # (B, H, N T, Z or 1)
    program.run(_forward, program.over_rows, (out, lse))
    return out, lse


def gradient(given: Observed, G: Tensor, lse: Tensor, D: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Compute dq, dk and dv, those that are needed, in float32 at least."""
    program = Program(given)
    read = G.contiguous(), lse.contiguous(), D.contiguous()
    dquery = program.rows(given.query.shape[3]) if needs[0] else None  # (B, H, N T, Y)
    if dquery is not None:
        program.run(_to_rows, program.over_rows, (*read, dquery))
    dkeys, dvalues = program.columns(given.keys), program.columns(given.values)  # (B, H, T + lead, Y or Z)
    if needs[1] or needs[2]:
        program.run(_to_columns, program.over_columns, (*read, dkeys, dvalues), KEYS=needs[1], VALUES=needs[2])
    return dquery, dkeys if needs[1] else None, dvalues if needs[2] else None


def tile(block: int, element_size: int, exact: bool) -> int:
    """Return the rows, and the columns, of a program that holds rows of ``block`` channels.

    ``exact``: float32 or float64 without TF32, which no matrix unit computes.
    """
    return max(LEAST, min(32 if exact else 64, 8192 // (block * element_size)))


class Program:
    """How the kernels are started for these rows and columns."""

    def __init__(self, given: Observed) -> None:
        query, keys, values = (tensor.contiguous() for tensor in given[:3])
        heads, columns = keys.shape[0] * keys.shape[1], keys.shape[2]
        tokens = columns - given.lead
        samples = query.shape[2] // tokens
        self.query, self.given = query, (tokens, columns, samples, query, keys, values)
        products = product_constants(query)
        exact = query.element_size() > 2 and products["PRECISION"] == "ieee"
        blocks = [max(LEAST, triton.next_power_of_2(tensor.shape[3])) for tensor in (keys, values)]
        side = tile(max(blocks), query.element_size(), exact)
        self.over_rows = triton.cdiv(tokens, side), samples, heads
        self.over_columns = triton.cdiv(columns, side), 1, heads
        self.constants: dict[str, Any] = {
            "SCALE": given.scale, "LEAD": given.lead, **products,
            "Y": keys.shape[3], "Z": values.shape[3], "BLOCK_Y": blocks[0], "BLOCK_Z": blocks[1], "TILE": side,
            "num_warps": 4, "num_stages": 1,
        }

    def rows(self, width: int) -> Tensor:
        """Return room for numbers of each row, (B, H, N T, width)."""
        return torch.empty((*self.query.shape[:3], width), dtype=wide(self.query), device=self.query.device)

    def columns(self, like: Tensor) -> Tensor:
        """Return room for numbers of each column, (B, H, T + lead, Y or Z)."""
        return torch.empty(like.shape, dtype=wide(like), device=like.device)

    def run(self, kernel: Any, grid: tuple[int, int, int], tensors: tuple[Tensor, ...], **options: bool) -> None:
        with torch.cuda.device_of(self.query):
            kernel[grid](*self.given, *tensors, **self.constants, **options)


@triton.jit
def load(x, start, index, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load rows (TILE, BLOCK) of (count, WIDTH), which begins at row ``start``; zeros beyond."""
    channel = tl.arange(0, BLOCK)[None, :]
    at = (start + index)[:, None] * WIDTH + channel
    return tl.load(x + at, mask=(index < count)[:, None] & (channel < WIDTH), other=0.0).to(TYPE)


@triton.jit
def store(x, value, start, index, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    channel = tl.arange(0, BLOCK)[None, :]
    at = (start + index)[:, None] * WIDTH + channel
    tl.store(x + at, value.to(x.dtype.element_ty), mask=(index < count)[:, None] & (channel < WIDTH))


@triton.jit
def times(one, two, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute one @ two^T, (TILE, TILE)."""
    return tl.dot(one, tl.trans(two), input_precision=PRECISION)


@triton.jit
def hide(scores, row, column, columns, LEAD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Make the scores of what a row does not see minus infinity."""
    seen = (column[None, :] <= row[:, None] + LEAD) & (column < columns)[None, :]
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def probabilities(  # type: ignore[no-untyped-def]
    q, k, normaliser, row, column, columns, SCALE: tl.constexpr, LEAD: tl.constexpr, PRECISION: tl.constexpr
):
    """Compute p (TILE, TILE), given lse (TILE,)."""
    scores = times(q, k, PRECISION).to(normaliser.dtype) * SCALE
    return tl.exp(hide(scores, row, column, columns, LEAD) - normaliser[:, None])


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    tokens, columns, samples, query, keys, values, out, lse,
    SCALE: tl.constexpr, LEAD: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    Y: tl.constexpr, Z: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_Z: tl.constexpr, TILE: tl.constexpr,
):
    head = tl.program_id(2).to(tl.int64)
    rows, seen = (head * samples + tl.program_id(1)) * tokens, head * columns
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    q = load(query, rows, row, tokens, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
    read = tl.zeros((TILE, BLOCK_Z), WIDE)
    total = tl.zeros((TILE,), WIDE)
    largest = tl.full((TILE,), float("-inf"), WIDE)
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * TILE + LEAD, columns), TILE):
        column = start + tl.arange(0, TILE)
        k = load(keys, seen, column, columns, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
        v = load(values, seen, column, columns, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
        scores = hide(times(q, k, PRECISION).to(WIDE) * SCALE, row, column, columns, LEAD)  # (TILE, TILE)
        above = tl.maximum(largest, tl.max(scores, axis=1))
        kept = tl.exp(largest - above)
        p = tl.exp(scores - above[:, None])
        total = total * kept + tl.sum(p, axis=1)
        read = read * kept[:, None] + tl.dot(p.to(DOT), v, input_precision=PRECISION)
        largest = above
    store(out, read / total[:, None], rows, row, tokens, Z, BLOCK_Z)
    tl.store(lse + rows + row, largest + tl.log(total), mask=row < tokens)


@triton.jit
def _to_rows(  # type: ignore[no-untyped-def]
    tokens, columns, samples, query, keys, values, direction, lse, mean, dquery,
    SCALE: tl.constexpr, LEAD: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    Y: tl.constexpr, Z: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_Z: tl.constexpr, TILE: tl.constexpr,
):
    head = tl.program_id(2).to(tl.int64)
    rows, seen = (head * samples + tl.program_id(1)) * tokens, head * columns
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    q = load(query, rows, row, tokens, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
    G = load(direction, rows, row, tokens, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
    normaliser = tl.load(lse + rows + row, mask=row < tokens, other=float("inf"))
    D = tl.load(mean + rows + row, mask=row < tokens, other=0.0)
    total = tl.zeros((TILE, BLOCK_Y), WIDE)
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * TILE + LEAD, columns), TILE):
        column = start + tl.arange(0, TILE)
        k = load(keys, seen, column, columns, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
        v = load(values, seen, column, columns, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
        p = probabilities(q, k, normaliser, row, column, columns, SCALE, LEAD, PRECISION)  # (TILE, TILE)
        ds = p * (times(G, v, PRECISION).to(WIDE) - D[:, None])
        total += tl.dot(ds.to(DOT), k, input_precision=PRECISION)
    store(dquery, total * SCALE, rows, row, tokens, Y, BLOCK_Y)


@triton.jit
def _to_columns(  # type: ignore[no-untyped-def]
    tokens, columns, samples, query, keys, values, direction, lse, mean, dkeys, dvalues,
    SCALE: tl.constexpr, LEAD: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    Y: tl.constexpr, Z: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_Z: tl.constexpr, TILE: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr,
):
    head = tl.program_id(2).to(tl.int64)
    seen = head * columns
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    k = load(keys, seen, column, columns, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
    v = load(values, seen, column, columns, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
    of_keys = tl.zeros((TILE, BLOCK_Y), WIDE)
    of_values = tl.zeros((TILE, BLOCK_Z), WIDE)
    for sample in range(0, samples):
        rows = (head * samples + sample) * tokens
        for start in range(tl.maximum(tl.program_id(0) * TILE - LEAD, 0) // TILE * TILE, tokens, TILE):
            row = start + tl.arange(0, TILE)
            q = load(query, rows, row, tokens, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
            G = load(direction, rows, row, tokens, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
            normaliser = tl.load(lse + rows + row, mask=row < tokens, other=float("inf"))
            D = tl.load(mean + rows + row, mask=row < tokens, other=0.0)
            p = probabilities(q, k, normaliser, row, column, columns, SCALE, LEAD, PRECISION)  # (TILE, TILE)
            if VALUES:
                of_values += tl.dot(tl.trans(p.to(DOT)), G, input_precision=PRECISION)
            if KEYS:
                ds = p * (times(G, v, PRECISION).to(WIDE) - D[:, None])
                of_keys += tl.dot(tl.trans(ds.to(DOT)), q, input_precision=PRECISION)
    if KEYS:
        store(dkeys, of_keys * SCALE, seen, column, columns, Y, BLOCK_Y)
    if VALUES:
        store(dvalues, of_values, seen, column, columns, Z, BLOCK_Z)


def curvature(
    given: Observed, G: Tensor, lse: Tensor, D: Tensor, along: Cotangents, own: OwnRows | None,
    needs: tuple[bool, ...],
) -> Curvature:
    """Compute the derivatives by G, q, k and v, those that are needed, and T and R, in float32 at least."""
    program = Program(given)
    lse, D = lse.contiguous(), D.contiguous()
    b = given.keys if along.keys is None else along.keys  # (B, H, T + lead, Y)
    d = given.values if along.values is None else along.values  # (B, H, T + lead, Z)
    read = tuple(tensor.to(given.query.dtype).contiguous() for tensor in (G, along.query, b, d))
    options = {"ALONG_KEYS": along.keys is not None, "ALONG_VALUES": along.values is not None}
    T, R = program.rows(1), program.rows(1)  # (B, H, N T, 1)
    by_G, by_query = program.rows(given.values.shape[3]), program.rows(given.query.shape[3])  # (B, H, N T, Z or Y)
    added = (torch.zeros_like(D),) * 4 if own is None else tuple(rows.contiguous() for rows in own)
    results = lse, D, *added, T, R, by_G, by_query
    program.run(_bend_rows, program.over_rows, (*read, *results), **options)
    by_keys, by_values = program.columns(given.keys), program.columns(given.values)  # (B, H, T + lead, Y or Z)
    if needs[2] or needs[3]:
        results = lse, D, T, R, by_keys, by_values
        program.run(_bend_columns, program.over_columns, (*read, *results), KEYS=needs[2], VALUES=needs[3], **options)
    return Curvature(by_G, by_query, by_keys if needs[2] else None, by_values if needs[3] else None, T, R)


@triton.jit
def _bend_rows(  # type: ignore[no-untyped-def]
    tokens, columns, samples, query, keys, values, direction, along_query, along_keys, along_values, lse, mean, own_ds,
    own_t, own_pt, own_pw, mean_t, mean_r, by_direction, by_query,
    SCALE: tl.constexpr, LEAD: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    Y: tl.constexpr, Z: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_Z: tl.constexpr, TILE: tl.constexpr,
    ALONG_KEYS: tl.constexpr, ALONG_VALUES: tl.constexpr,
):
    head = tl.program_id(2).to(tl.int64)
    rows, seen = (head * samples + tl.program_id(1)) * tokens, head * columns
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    at, there = rows + row, row < tokens
    q = load(query, rows, row, tokens, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
    a = load(along_query, rows, row, tokens, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
    G = load(direction, rows, row, tokens, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
    normaliser = tl.load(lse + at, mask=there, other=float("inf"))
    D = tl.load(mean + at, mask=there, other=0.0)
    stop = tl.minimum((tl.program_id(0) + 1) * TILE + LEAD, columns)
    T = tl.load(own_pt + at, mask=there, other=0.0)
    for start in range(0, stop, TILE):
        column = start + tl.arange(0, TILE)
        k = load(keys, seen, column, columns, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
        p = probabilities(q, k, normaliser, row, column, columns, SCALE, LEAD, PRECISION)  # (TILE, TILE)
        t = times(a, k, PRECISION).to(WIDE)
        if ALONG_KEYS:
            b = load(along_keys, seen, column, columns, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
            t += times(q, b, PRECISION)
        T += tl.sum(p * t, axis=1) * SCALE
    u = tl.load(own_t + at, mask=there, other=0.0) - T
    R = tl.load(own_ds + at, mask=there, other=0.0) * u + tl.load(own_pw + at, mask=there, other=0.0)
    of_direction = tl.zeros((TILE, BLOCK_Z), WIDE)
    of_query = tl.zeros((TILE, BLOCK_Y), WIDE)
    mean_key = tl.zeros((TILE, BLOCK_Y), WIDE)
    for start in range(0, stop, TILE):
        column = start + tl.arange(0, TILE)
        k = load(keys, seen, column, columns, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
        v = load(values, seen, column, columns, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
        p = probabilities(q, k, normaliser, row, column, columns, SCALE, LEAD, PRECISION)  # (TILE, TILE)
        ds = p * (times(G, v, PRECISION).to(WIDE) - D[:, None])
        t = times(a, k, PRECISION).to(WIDE)
        if ALONG_KEYS:
            b = load(along_keys, seen, column, columns, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
            t += times(q, b, PRECISION)
            of_query += tl.dot(ds.to(DOT), b, input_precision=PRECISION)
        t = t * SCALE - T[:, None]
        r = ds * t
        of_direction += tl.dot((p * t).to(DOT), v, input_precision=PRECISION)
        if ALONG_VALUES:
            d = load(along_values, seen, column, columns, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
            r += p * times(G, d, PRECISION)
            of_direction += tl.dot(p.to(DOT), d, input_precision=PRECISION)
        R += tl.sum(r, axis=1)
        of_query += tl.dot(r.to(DOT), k, input_precision=PRECISION)
        mean_key += tl.dot(p.to(DOT), k, input_precision=PRECISION)
    tl.store(mean_t + at, T, mask=there)
    tl.store(mean_r + at, R, mask=there)
    store(by_direction, of_direction, rows, row, tokens, Z, BLOCK_Z)
    store(by_query, (of_query - R[:, None] * mean_key) * SCALE, rows, row, tokens, Y, BLOCK_Y)


@triton.jit
def _bend_columns(  # type: ignore[no-untyped-def]
    tokens, columns, samples, query, keys, values, direction, along_query, along_keys, along_values, lse, mean, mean_t,
    mean_r, by_keys, by_values,
    SCALE: tl.constexpr, LEAD: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    Y: tl.constexpr, Z: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_Z: tl.constexpr, TILE: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, ALONG_KEYS: tl.constexpr, ALONG_VALUES: tl.constexpr,
):
    head = tl.program_id(2).to(tl.int64)
    seen = head * columns
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    k = load(keys, seen, column, columns, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
    v = load(values, seen, column, columns, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
    of_keys = tl.zeros((TILE, BLOCK_Y), WIDE)
    of_values = tl.zeros((TILE, BLOCK_Z), WIDE)
    for sample in range(0, samples):
        rows = (head * samples + sample) * tokens
        for start in range(tl.maximum(tl.program_id(0) * TILE - LEAD, 0) // TILE * TILE, tokens, TILE):
            row = start + tl.arange(0, TILE)
            at, there = rows + row, row < tokens
            q = load(query, rows, row, tokens, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
            a = load(along_query, rows, row, tokens, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
            G = load(direction, rows, row, tokens, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
            normaliser = tl.load(lse + at, mask=there, other=float("inf"))
            D = tl.load(mean + at, mask=there, other=0.0)
            T = tl.load(mean_t + at, mask=there, other=0.0)
            R = tl.load(mean_r + at, mask=there, other=0.0)
            p = probabilities(q, k, normaliser, row, column, columns, SCALE, LEAD, PRECISION)  # (TILE, TILE)
            t = times(a, k, PRECISION).to(WIDE)
            if ALONG_KEYS:
                b = load(along_keys, seen, column, columns, Y, BLOCK_Y, DOT)  # (TILE, BLOCK_Y)
                t += times(q, b, PRECISION)
            u = t * SCALE - T[:, None]
            if VALUES:
                of_values += tl.dot(tl.trans((p * u).to(DOT)), G, input_precision=PRECISION)
            if KEYS:
                ds = p * (times(G, v, PRECISION).to(WIDE) - D[:, None])
                r = ds * u - p * R[:, None]
                if ALONG_VALUES:
                    d = load(along_values, seen, column, columns, Z, BLOCK_Z, DOT)  # (TILE, BLOCK_Z)
                    r += p * times(G, d, PRECISION)
                of_keys += tl.dot(tl.trans(r.to(DOT)), q, input_precision=PRECISION)
                of_keys += tl.dot(tl.trans(ds.to(DOT)), a, input_precision=PRECISION)
    if KEYS:
        store(by_keys, of_keys * SCALE, seen, column, columns, Y, BLOCK_Y)
    if VALUES:
        store(by_values, of_values, seen, column, columns, Z, BLOCK_Z)
