"""The gradient of attention's gradient in Triton, over the observed columns; formulas: see ``second_order``.

One kernel goes over the columns twice, for T and for what needs T.  R needs T too, and is taken out of the sum that
needs it: r k = (ds u + p w) k - R p k.  The other goes over rows.

Legend: B sequences, H heads, N samples, T tokens, Y channels of a head, Z channels of its values.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.self_slot_attention.fused import Program, load, probabilities, store, times
from paper_repro.kernels.self_slot_attention.second_order import Cotangents, Curvature, Observed, OwnRows


def curvature(
    given: Observed,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    along: Cotangents,
    own: OwnRows | None,
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
    tokens,
    columns,
    samples,
    query,
    keys,
    values,
    direction,
    along_query,
    along_keys,
    along_values,
    lse,
    mean,
    own_ds,
    own_t,
    own_pt,
    own_pw,
    mean_t,
    mean_r,
    by_direction,
    by_query,
    SCALE: tl.constexpr,
    LEAD: tl.constexpr,
    WIDE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    Y: tl.constexpr,
    Z: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_Z: tl.constexpr,
    TILE: tl.constexpr,
    ALONG_KEYS: tl.constexpr,
    ALONG_VALUES: tl.constexpr,
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
    tokens,
    columns,
    samples,
    query,
    keys,
    values,
    direction,
    along_query,
    along_keys,
    along_values,
    lse,
    mean,
    mean_t,
    mean_r,
    by_keys,
    by_values,
    SCALE: tl.constexpr,
    LEAD: tl.constexpr,
    WIDE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    Y: tl.constexpr,
    Z: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_Z: tl.constexpr,
    TILE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    ALONG_KEYS: tl.constexpr,
    ALONG_VALUES: tl.constexpr,
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
