"""EBT's attention of candidates in Triton, with its gradient and the gradient of that by hand.

With s_ij = c q_i . k_j, p = softmax_j(s), G and g the gradients of o and lse, D_i = G_i . o_i - g_i, dp_ij = G_i . v_j,

    ds = p (dp - D),   dq = c ds k,   dk = c ds^T q,   dv = p^T G

Let a, b, d be the cotangents of dq, dk, dv, and t_ij = c (a_i . k_j + q_i . b_j), w_ij = G_i . d_j, T_i = sum_j p t,
u = t - T, R_i = sum_j (ds u + p w), r = ds u + p (w - R).  The derivatives of dq . a + dk . b + dv . d are

    by G: (p u) v + p d    by g: T    by v: (p u)^T G    by q: c (r k + ds b)    by k: c (r^T q + ds^T a)

Sums over j include one's own column, if there is one: PyTorch computes its numbers, one for each row.  The kernels go
over the observed columns, j <= i + lead.  A program takes some rows of a head, or some columns; scores are computed
anew in each pass.  The gradient goes over columns for dq, then over rows for dk and dv.  Its own gradient goes over the
columns twice, for T and for what needs T; R needs T too, and is taken out of the sum that needs it, as r k =
(ds u + p w) k - R p k.  The last kernel goes over rows.  Every sum has a fixed order; nothing is added atomically.

Legend: B sequences, H heads, N samples, T tokens, R = N T rows, Y channels of a head, Z channels of its values.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.first_order import SecondOrder, WithGradient
from paper_repro.kernels.triton import product_constants
from paper_repro.models.common import rows_to_samples, samples_to_rows, wide

LEAST = 16
"""Rows, columns or channels that a matrix product takes at least."""


def attend(*tensors: Tensor | None, lead: int, scale: float) -> Tensor:
    """Compute o (N B, H, T, Z) of the query, own keys and values, or None and None, keys and values."""
    query, keys = tensors[0], tensors[3]
    assert query is not None and keys is not None
    rows = (None if tensor is None else samples_to_rows(tensor, keys) for tensor in tensors[:3])
    out, _ = Attention.apply(*rows, *tensors[3:], lead, scale)  # (B, H, N T, Z)
    return rows_to_samples(out, query)


class AttentionCurvature(SecondOrder):
    """The derivatives of ``AttentionGradient`` along cotangents of its results; they have none themselves.

    What o and lse depend on is in the other derivatives.
    """

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        a, own_b, own_d, b, d, G, query, own_key, own_value, keys, values, out, lse, lead, scale, _, needs = given
        a = torch.zeros_like(query) if a is None else a  # (B, H, R, Y)
        D, program = _dot(G, out), Program(query, keys, values, lead, scale)
        ds = t = pt = pw = torch.zeros_like(D)  # (B, H, R, 1): what one's own column adds to the sums over a row
        if own_key is not None:
            p, ds = _own(query, own_key, own_value, G, lse, D, scale)
            t = _dot(a, own_key) * scale  # (B, H, R, 1)
            t = t if own_b is None else t + _dot(query, own_b) * scale
            w = torch.zeros_like(t) if own_d is None else _dot(G, own_d)  # (B, H, R, 1)
            pt, pw = p * t, p * w
        wanted = needs[0], needs[1], needs[4], needs[5]
        found = curvature(program, G, lse, D, a, b, d, (ds, t, pt, pw), wanted)
        T, R, by_direction, by_query, by_keys, by_values = found
        by_key = by_value = None
        if own_key is not None:
            pu = p * (t - T)  # (B, H, R, 1)
            r = (ds * (t - T) + p * (w - R)) * scale  # (B, H, R, 1)
            ds = ds * scale
            by_direction = _added(by_direction, (pu, own_value), (p, own_d))  # (B, H, R, Z)
            by_query = _added(by_query, (r, own_key), (ds, own_b))  # (B, H, R, Y)
            by_key = (r * query).addcmul_(ds, a) if needs[2] else None  # (B, H, R, Y)
            by_value = pu * G if needs[3] else None  # (B, H, R, Z)
        return _as_given((by_direction, by_query, by_key, by_value, by_keys, by_values), (G, *given[6:11]))


class AttentionGradient(WithGradient, SecondOrder):
    """The gradients of q, own k, own v, keys and values, those that are needed: of G, these tensors, o and lse."""

    gradient, num_results, selective = AttentionCurvature, 5, True

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        G, query, own_key, own_value, keys, values, out, lse, lead, scale, needs = given
        D, program = _dot(G, out), Program(query, keys, values, lead, scale)
        read = G.contiguous(), lse.contiguous(), D.contiguous()
        dquery = program.rows(query.shape[3]) if needs[0] else None  # (B, H, R, Y)
        if dquery is not None:
            program.run(_to_rows, program.over_rows, (*read, dquery))
        dkeys, dvalues = program.columns(keys), program.columns(values)  # (B, H, T + lead, Y or Z)
        if needs[3] or needs[4]:
            program.run(_to_columns, program.over_columns, (*read, dkeys, dvalues), KEYS=needs[3], VALUES=needs[4])
        dkey = dvalue = None
        if own_key is not None:
            p, ds = _own(query, own_key, own_value, G, lse, D, scale)
            dquery = _added(dquery, (ds * scale, own_key))  # (B, H, R, Y)
            dkey = (ds * scale) * query if needs[1] else None  # (B, H, R, Y)
            dvalue = p * G if needs[2] else None  # (B, H, R, Z)
        found = dquery, dkey, dvalue, dkeys if needs[3] else None, dvalues if needs[4] else None
        return _as_given(found, given[1:6])


class Attention(WithGradient, SecondOrder):
    """o (B, H, R, Z) of q, own k, own v, keys, values; both or neither own ones are None.  Keeps lse (B, H, R, 1)."""

    gradient, keeps_results, selective = AttentionGradient, True, True

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor]:
        query, own_key, own_value, keys, values, lead, scale = given
        program = Program(query, keys, values, lead, scale)
        out, lse = program.rows(values.shape[3]), program.rows(1)  # (B, H, R, Z or 1)
        program.run(_forward, program.over_rows, (out, lse))
        if own_key is not None:
            own = _dot(query, own_key) * scale  # (B, H, R, 1)
            out = torch.lerp(out, own_value.to(out.dtype), torch.sigmoid(own - lse).to(out.dtype))  # (B, H, R, Z)
            lse = torch.logaddexp(lse, own)
        return out.to(values.dtype), lse


def _own(
    q: Tensor, key: Tensor, value: Tensor, G: Tensor, lse: Tensor, D: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return p and ds of one's own column, (B, H, R, 1)."""
    p = torch.exp(_dot(q, key) * scale - lse)
    return p, p * (_dot(G, value) - D)


def _dot(one: Tensor, two: Tensor) -> Tensor:
    """Return the products of rows, (B, H, R, 1), in float32 at least."""
    return (one.to(wide(one)) * two).sum(-1, keepdim=True)


def _added(total: Tensor | None, *terms: tuple[Tensor, Tensor | None]) -> Tensor | None:
    for factor, rows in terms:
        if total is not None and rows is not None:
            total.addcmul_(factor, rows)
    return total


def _as_given(found: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Return each in the dtype of what it is the gradient of; none where that was not given."""
    return tuple(
        None if tensor is None or like is None else tensor.to(like.dtype)
        for tensor, like in zip(found, given, strict=True)
    )


def tile(block: int, element_size: int, exact: bool) -> int:
    """Return the rows, and the columns, of a program that holds rows of ``block`` channels.

    ``exact``: float32 or float64 without TF32, which no matrix unit computes.
    """
    return max(LEAST, min(32 if exact else 64, 8192 // (block * element_size)))


class Program:
    """How the kernels are started for these rows (B, H, R, Y) and columns (B, H, T + lead, Y or Z)."""

    def __init__(self, query: Tensor, keys: Tensor, values: Tensor, lead: int, scale: float) -> None:
        query, keys, values = (tensor.contiguous() for tensor in (query, keys, values))
        heads, columns = keys.shape[0] * keys.shape[1], keys.shape[2]
        tokens = columns - lead
        samples = query.shape[2] // tokens
        self.query, self.given = query, (tokens, columns, samples, query, keys, values)
        products = product_constants(query)
        exact = query.element_size() > 2 and products["PRECISION"] == "ieee"
        blocks = [max(LEAST, triton.next_power_of_2(tensor.shape[3])) for tensor in (keys, values)]
        side = tile(max(blocks), query.element_size(), exact)
        self.over_rows = triton.cdiv(tokens, side), samples, heads
        self.over_columns = triton.cdiv(columns, side), 1, heads
        self.constants: dict[str, Any] = {
            "SCALE": scale, "LEAD": lead, **products,
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
    program: Program, G: Tensor, lse: Tensor, D: Tensor, a: Tensor, b: Tensor | None, d: Tensor | None,
    own: tuple[Tensor, ...], needs: tuple[bool, ...],
) -> tuple[Any, ...]:
    """Compute T and R (B, H, R, 1) and the derivatives by G, q, k and v, those that are needed, in float32 at least.

    b and d None stand for zeros; ``own`` is what one's own column adds to ds, t, p t and p w, each (B, H, R, 1).
    """
    *_, query, keys, values = program.given
    options = {"ALONG_KEYS": b is not None, "ALONG_VALUES": d is not None}
    along = a, keys if b is None else b, values if d is None else d  # what is not along is not read
    read = [tensor.to(query.dtype).contiguous() for tensor in (G, *along)]
    read += [tensor.contiguous() for tensor in (lse, D)]
    T, R = program.rows(1), program.rows(1)  # (B, H, R, 1)
    by_G, by_query = program.rows(values.shape[3]), program.rows(query.shape[3])  # (B, H, R, Z or Y)
    added = (rows.contiguous() for rows in own)
    program.run(_bend_rows, program.over_rows, (*read, *added, T, R, by_G, by_query), **options)
    by_keys, by_values = program.columns(keys), program.columns(values)  # (B, H, T + lead, Y or Z)
    if needs[2] or needs[3]:
        results = T, R, by_keys, by_values
        program.run(_bend_columns, program.over_columns, (*read, *results), KEYS=needs[2], VALUES=needs[3], **options)
    return T, R, by_G, by_query, by_keys if needs[2] else None, by_values if needs[3] else None


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
