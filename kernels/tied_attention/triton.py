"""Attention whose values are its keys, in Triton.

What the diagonal adds to a score is the same for all heads: C = u (h d)^T, (B, T, T) in float32, whose tiles the
programs of the heads read; to compute it in each took 17 to 25 times as long as flash attention on an H100.  Every sum
has a fixed order, nothing is added atomically.

With p = exp(s - lse), G the gradient of o, dp = G k^T and ds = p (dp - G . o), sums over queries i,

    dq = ds k / tau,   dk = p^T G + ds^T q / tau,   du = dS (h d) / tau,   d(h d) = dS^T u / tau

where dS is ds summed over heads.  The rows of ds sum to 0: the gradient of bias_cross is minus that of bias_self, the
sum of the diagonals.  The backward pass goes over keys for dq, over queries for both terms of dk, and, if there is a
diagonal, over heads for dS, (B, T, T) in the keys' dtype; du and d(h d) are products of it.

A program takes some queries (or keys) of one head of a sequence and goes over the others; that of ``over_heads`` takes
some pairs of both and goes over heads.  Heads of a width like 72 are read as 64 and 16 columns, the second the tail.

Legend: B sequences, T tokens, D width, H heads, Y head width.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.kernels.triton import product_constants
from paper_repro.models.common import wide

LEAST = 16
"""What a matrix product of Triton's takes at least of each of its sizes."""
ROW_BYTES = 1 << 15
"""Bytes of the tile that a program keeps while it goes over others: of queries or keys of one head."""
MOST = 64
"""Rows of that tile at most: on an H100 128 were slower in all kernels, by 10 to 95 %."""


class Tiles(NamedTuple):
    """A program keeps ``own`` queries (or keys) of one head and goes over the others, ``other`` at a time."""

    block: int  # the first columns of a head, a power of two
    tail: int  # columns beside them, a power of two or 0
    own: int
    other: int
    warps: int
    stages: int  # how many tiles are fetched ahead


def tiles(keys: Tensor, own_keys: bool = False) -> Tiles:
    """Choose tiles for the heads of keys (B, T, H, Y).

    In bfloat16 they are the fastest of six to ten that were tried on an H100, at Y = 64, 72 and 84: square, but a
    program that keeps keys (``own_keys``) meets half as many queries if these have a tail.
    """
    element_size, (block, tail) = keys.element_size(), _columns(keys.shape[3])
    columns = block + tail
    rows = ROW_BYTES // (columns * element_size)
    own = max(LEAST, min(MOST, 1 << (rows.bit_length() - 1)))  # a power of two
    if element_size > 2:
        return Tiles(block, tail, own, max(LEAST, own // 2), 8, 2)
    warps = 4 if columns <= 96 else 8
    if not own_keys:
        return Tiles(block, tail, own, own, warps, 3 if columns <= 96 else 2)
    return Tiles(block, tail, own, max(LEAST, own // 2) if tail else own, warps, 3 if tail else 2)


def _columns(width: int) -> tuple[int, int]:
    """Split the width into a power of two and a smaller one, if both are less than the next power of two."""
    whole = max(LEAST, triton.next_power_of_2(width))
    tail = max(LEAST, triton.next_power_of_2(width - whole // 2)) if whole > 2 * LEAST else whole
    return (whole // 2, tail) if whole // 2 + tail < whole else (whole, 0)


class TiedAttentionGradient(FirstOrder):
    """The gradients of all tensors, given that of o, the tensors, o and lse."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        direction, query, keys, state, context, slopes, bias_self, bias_cross, out, lse, tau = given
        direction, query, keys, out = (value.contiguous() for value in (direction, query, keys, out))
        sequences, tokens, heads, _ = keys.shape
        plan, of_keys = tiles(keys), tiles(keys, own_keys=True)
        grid, constants = _grid(keys, plan), _constants(keys, context, tau, plan)
        delta, dquery, dkeys = torch.empty_like(lse), torch.empty_like(query), torch.empty_like(keys)
        partial = torch.empty(grid, dtype=lse.dtype, device=query.device)
        inputs = query, keys, _shared(query, state, context), *_contiguous(slopes, bias_self, bias_cross)
        read = tokens, heads, *inputs, direction, lse, delta
        dstate: Tensor | None = None
        dcontext: Tensor | None = None
        with torch.cuda.device_of(query):
            to_queries[grid](*read, out, dquery, partial, **constants, ROWS=plan.own, COLUMNS=plan.other)
            to_keys[_grid(keys, of_keys)](
                *read, dkeys, **_constants(keys, context, tau, of_keys), ROWS=of_keys.other, COLUMNS=of_keys.own
            )
            if state is not None:
                summed = query.new_zeros(sequences, tokens, tokens)  # dS / tau, (B, T, T)
                of_pairs = triton.cdiv(tokens, plan.other), triton.cdiv(tokens, plan.own), sequences
                over_heads[of_pairs](*read, summed, **constants, ROWS=plan.own, COLUMNS=plan.other)
                dstate, dcontext = torch.bmm(summed, context), torch.bmm(summed.mT, state)  # (B, T, D) each
        diagonal = partial.sum()
        return dquery, dkeys, dstate, dcontext, None, diagonal.to(bias_self.dtype), -diagonal.to(bias_cross.dtype)


class TiedAttention(WithGradient):
    """o (B, T, H, Y) and lse (B, T, H) of q, k, u, h d, slopes, bias_self, bias_cross and tau, see ``op``.

    Sums are float32 (float64 where an input is); q, k, u and h d have one dtype, in which matrices are multiplied.
    """

    gradient = TiedAttentionGradient
    keeps_results = True

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor]:
        query, keys, state, context, slopes, bias_self, bias_cross, tau = given
        query, keys = query.contiguous(), keys.contiguous()
        out, lse = torch.empty_like(keys), query.new_empty(query.shape[:-1], dtype=wide(query))
        plan, (_, tokens, heads, _) = tiles(keys), keys.shape
        read = query, keys, _shared(query, state, context), *_contiguous(slopes, bias_self, bias_cross)
        constants = _constants(keys, context, tau, plan)
        with torch.cuda.device_of(query):
            forward[_grid(keys, plan)](tokens, heads, *read, out, lse, **constants, ROWS=plan.own, COLUMNS=plan.other)
        return out, lse


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in tensors)


def _shared(query: Tensor, state: Tensor | None, context: Tensor | None) -> Tensor:
    """Compute C = u (h d)^T, (B, T, T) in float32 at least; without a diagonal anything stands for it."""
    if state is None or context is None:
        return query
    exact = wide(state)
    if state.is_cuda and state.dtype != exact:
        return torch.bmm(state, context.mT, out_dtype=exact)
    return torch.bmm(state.to(exact), context.mT.to(exact))


def _grid(keys: Tensor, plan: Tiles) -> tuple[int, int]:
    """Return the programs: heads of one tile beside each other, since they read the same tiles of C."""
    sequences, tokens, heads, _ = keys.shape
    return triton.cdiv(tokens, plan.own) * heads, sequences


def _constants(keys: Tensor, context: Tensor | None, tau: float, plan: Tiles) -> dict[str, Any]:
    return {
        **product_constants(keys), "INVERSE_TAU": 1 / tau, "SHARED": context is not None,
        "Y": keys.shape[3], "BLOCK": plan.block, "TAIL": plan.tail,
        "num_warps": plan.warps, "num_stages": plan.stages,
    }


LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _load_positions(slopes, bias_self, bias_cross, head, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load what a pair's distance adds to its score, for a softmax of powers of two."""
    slope, own, cross = tl.load(slopes + head), tl.load(bias_self), tl.load(bias_cross)
    return slope.to(WIDE) * LOG2E, own.to(WIDE) * LOG2E, cross.to(WIDE) * LOG2E


@triton.jit
def _load(x, token, tokens, row, FIRST: tl.constexpr, COUNT: tl.constexpr, Y: tl.constexpr, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load COUNT columns from FIRST on, 0 beside Y, of a head's tokens, ``row`` numbers apart."""
    column = FIRST + tl.arange(0, COUNT)
    at = x + tl.minimum(token, tokens - 1)[:, None] * row + column[None, :]
    if FIRST + COUNT <= Y:
        return tl.load(at).to(DOT)
    return tl.load(at, mask=(column < Y)[None, :], other=0.0).to(DOT)


@triton.jit
def _load_both(  # type: ignore[no-untyped-def]
    x, token, tokens, row, Y: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr, DOT: tl.constexpr
):
    """Load the first columns of a head and its tail; without one the first twice.  Beyond the last token the last."""
    first = _load(x, token, tokens, row, 0, BLOCK, Y, DOT)  # (tokens of the tile, BLOCK)
    tail = first
    if TAIL > 0:
        tail = _load(x, token, tokens, row, BLOCK, TAIL, Y, DOT)  # (tokens of the tile, TAIL)
    return first, tail


@triton.jit
def _store(x, value, token, tokens, row, FIRST: tl.constexpr, COUNT: tl.constexpr, Y: tl.constexpr):  # type: ignore[no-untyped-def]
    column = FIRST + tl.arange(0, COUNT)
    inside = (token < tokens)[:, None] & (column < Y)[None, :]
    tl.store(x + token[:, None] * row + column[None, :], value.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _products(a, a_tail, b, b_tail, TAIL: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute a b^T of the columns of a head, those of the tail among them."""
    found = tl.dot(a, tl.trans(b), input_precision=PRECISION)
    if TAIL > 0:
        found += tl.dot(a_tail, tl.trans(b_tail), input_precision=PRECISION)
    return found


@triton.jit
def _load_shared(at, present, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load a tile of C; keys beyond the last get 0: to read the last in their place took four times as long."""
    if MASKED:
        return tl.load(at, mask=present, other=0.0)
    return tl.load(at)


@triton.jit
def _scores(  # type: ignore[no-untyped-def]
    products, distance, slope, own, cross, INVERSE_TAU: tl.constexpr, DIAGONAL: tl.constexpr
):
    """Compute s_ijk / ln 2 of a tile; minus infinity where j > i, which only tiles on the diagonal have."""
    scores = products * (INVERSE_TAU * LOG2E) + (cross - slope * distance.to(products.dtype))
    if DIAGONAL:
        scores += tl.where(distance == 0, own - cross, 0.0)
        scores = tl.where(distance >= 0, scores, float("-inf"))
    return scores


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    q, q_tail, keys, shared, row, first, last, tokens, between, slope, own, cross, read, read_tail, total, largest,
    INVERSE_TAU: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, SHARED: tl.constexpr, Y: tl.constexpr,
    BLOCK: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr, DIAGONAL: tl.constexpr,
):
    """Go over the keys from ``first`` to ``last``."""
    for start in range(first, last, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        k, k_tail = _load_both(keys, column, tokens, between, Y, BLOCK, TAIL, DOT)  # (COLUMNS, BLOCK or TAIL)
        products = _products(q, q_tail, k, k_tail, TAIL, PRECISION)  # (ROWS, COLUMNS)
        if SHARED:
            products += _load_shared(shared + column[None, :], (column < tokens)[None, :], DIAGONAL)
        scores = _scores(products, row[:, None] - column[None, :], slope, own, cross, INVERSE_TAU, DIAGONAL)
        above = tl.maximum(largest, tl.max(scores, axis=1))  # (ROWS,)
        kept = tl.exp2(largest - above)
        p = tl.exp2(scores - above[:, None])
        total = total * kept + tl.sum(p, axis=1)
        read = read * kept[:, None] + tl.dot(p.to(DOT), k, input_precision=PRECISION)
        if TAIL > 0:
            read_tail = read_tail * kept[:, None] + tl.dot(p.to(DOT), k_tail, input_precision=PRECISION)
        largest = above
    return read, read_tail, total, largest


@triton.jit
def forward(  # type: ignore[no-untyped-def]
    tokens, heads, query, keys, shared, slopes, bias_self, bias_cross, out, lse,
    INVERSE_TAU: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, SHARED: tl.constexpr,
    Y: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    head = tl.program_id(0) % heads
    tile = tl.cdiv(tokens, ROWS) - 1 - tl.program_id(0) // heads  # the longest first
    sequence = tl.program_id(1).to(tl.int64)
    between, at = heads * Y, (sequence * tokens * heads + head) * Y
    row = tile * ROWS + tl.arange(0, ROWS)
    slope, own, cross = _load_positions(slopes, bias_self, bias_cross, head, WIDE)
    q, q_tail = _load_both(query + at, row, tokens, between, Y, BLOCK, TAIL, DOT)  # (ROWS, BLOCK or TAIL)
    read = tl.zeros((ROWS, BLOCK), WIDE)
    read_tail = tl.zeros((ROWS, TAIL if TAIL > 0 else 16), WIDE)
    total = tl.zeros((ROWS,), WIDE)
    largest = tl.full((ROWS,), float("-inf"), WIDE)
    shared += (sequence * tokens + tl.minimum(row, tokens - 1))[:, None] * tokens
    read, read_tail, total, largest = _attend(
        q, q_tail, keys + at, shared, row, 0, tile * ROWS, tokens, between, slope, own, cross, read, read_tail, total,
        largest, INVERSE_TAU, DOT, PRECISION, SHARED, Y, BLOCK, TAIL, COLUMNS, False,
    )  # fmt: skip
    read, read_tail, total, largest = _attend(
        q, q_tail, keys + at, shared, row, tile * ROWS, tl.minimum((tile + 1) * ROWS, tokens), tokens, between, slope,
        own, cross, read, read_tail, total, largest, INVERSE_TAU, DOT, PRECISION, SHARED, Y, BLOCK, TAIL, COLUMNS, True,
    )  # fmt: skip
    _store(out + at, read / total[:, None], row, tokens, between, 0, BLOCK, Y)
    if TAIL > 0:
        _store(out + at, read_tail / total[:, None], row, tokens, between, BLOCK, TAIL, Y)
    tl.store(lse + (sequence * tokens + row) * heads + head, (largest + tl.log2(total)) / LOG2E, mask=row < tokens)


@triton.jit
def _load_rows(lse, delta, sequence, row, tokens, heads, head):  # type: ignore[no-untyped-def]
    """Load lse / ln 2, infinite beyond the last token, and delta."""
    at = (sequence * tokens + row) * heads + head
    normaliser = tl.load(lse + at, mask=row < tokens, other=float("inf")) * LOG2E
    return normaliser, tl.load(delta + at, mask=row < tokens, other=0.0)


@triton.jit
def to_queries(  # type: ignore[no-untyped-def]
    tokens, heads, query, keys, shared, slopes, bias_self, bias_cross, direction, lse, delta, out, dquery, partial,
    INVERSE_TAU: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, SHARED: tl.constexpr,
    Y: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """Compute dq, delta = G . o, which the other kernels read, and the program's share of d(bias_self)."""
    head = tl.program_id(0) % heads
    tile = tl.cdiv(tokens, ROWS) - 1 - tl.program_id(0) // heads
    sequence = tl.program_id(1).to(tl.int64)
    between, at = heads * Y, (sequence * tokens * heads + head) * Y
    row = tile * ROWS + tl.arange(0, ROWS)
    slope, own, cross = _load_positions(slopes, bias_self, bias_cross, head, WIDE)
    q, q_tail = _load_both(query + at, row, tokens, between, Y, BLOCK, TAIL, DOT)  # (ROWS, BLOCK or TAIL)
    G, G_tail = _load_both(direction + at, row, tokens, between, Y, BLOCK, TAIL, DOT)
    o, o_tail = _load_both(out + at, row, tokens, between, Y, BLOCK, TAIL, DOT)
    mean = tl.sum(G.to(WIDE) * o.to(WIDE), axis=1)
    found = tl.zeros((ROWS, BLOCK), WIDE)
    found_tail = tl.zeros((ROWS, TAIL if TAIL > 0 else 16), WIDE)
    if TAIL > 0:
        mean += tl.sum(G_tail.to(WIDE) * o_tail.to(WIDE), axis=1)
    tl.store(delta + (sequence * tokens + row) * heads + head, mean, mask=row < tokens)
    normaliser, _ = _load_rows(lse, lse, sequence, row, tokens, heads, head)
    shared += (sequence * tokens + tl.minimum(row, tokens - 1))[:, None] * tokens
    diagonal = tl.zeros((ROWS,), WIDE)
    for start in range(0, tl.minimum((tile + 1) * ROWS, tokens), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        distance = row[:, None] - column[None, :]
        k, k_tail = _load_both(keys + at, column, tokens, between, Y, BLOCK, TAIL, DOT)  # (COLUMNS, BLOCK or TAIL)
        products = _products(q, q_tail, k, k_tail, TAIL, PRECISION)  # (ROWS, COLUMNS)
        if SHARED:
            products += _load_shared(shared + column[None, :], (column < tokens)[None, :], True)
        scores = _scores(products, distance, slope, own, cross, INVERSE_TAU, True)
        dp = _products(G, G_tail, k, k_tail, TAIL, PRECISION)
        ds = tl.exp2(scores - normaliser[:, None]) * (dp - mean[:, None])
        found += tl.dot(ds.to(DOT), k, input_precision=PRECISION)
        if TAIL > 0:
            found_tail += tl.dot(ds.to(DOT), k_tail, input_precision=PRECISION)
        if start + COLUMNS > tile * ROWS:
            diagonal += tl.sum(tl.where(distance == 0, ds, 0.0), axis=1)
    _store(dquery + at, found * INVERSE_TAU, row, tokens, between, 0, BLOCK, Y)
    if TAIL > 0:
        _store(dquery + at, found_tail * INVERSE_TAU, row, tokens, between, BLOCK, TAIL, Y)
    tl.store(partial + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(diagonal, axis=0))


@triton.jit
def to_keys(  # type: ignore[no-untyped-def]
    tokens, heads, query, keys, shared, slopes, bias_self, bias_cross, direction, lse, delta, dkeys,
    INVERSE_TAU: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, SHARED: tl.constexpr,
    Y: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """Add both terms of dk; scores are computed with keys as rows."""
    head = tl.program_id(0) % heads
    tile = tl.program_id(0) // heads
    sequence = tl.program_id(1).to(tl.int64)
    between, at = heads * Y, (sequence * tokens * heads + head) * Y
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    slope, own, cross = _load_positions(slopes, bias_self, bias_cross, head, WIDE)
    k, k_tail = _load_both(keys + at, column, tokens, between, Y, BLOCK, TAIL, DOT)  # (COLUMNS, BLOCK or TAIL)
    found = tl.zeros((COLUMNS, BLOCK), WIDE)
    found_tail = tl.zeros((COLUMNS, TAIL if TAIL > 0 else 16), WIDE)
    shared += sequence * tokens * tokens + column[:, None]
    for start in range(tile * COLUMNS, tokens, ROWS):
        row = start + tl.arange(0, ROWS)
        q, q_tail = _load_both(query + at, row, tokens, between, Y, BLOCK, TAIL, DOT)  # (ROWS, BLOCK or TAIL)
        G, G_tail = _load_both(direction + at, row, tokens, between, Y, BLOCK, TAIL, DOT)
        normaliser, mean = _load_rows(lse, delta, sequence, row, tokens, heads, head)
        products = _products(k, k_tail, q, q_tail, TAIL, PRECISION)  # (COLUMNS, ROWS)
        if SHARED:
            of_rows = shared + tl.minimum(row, tokens - 1).to(tl.int64)[None, :] * tokens
            products += _load_shared(of_rows, (column < tokens)[:, None], True)
        scores = _scores(products, row[None, :] - column[:, None], slope, own, cross, INVERSE_TAU, True)
        p = tl.exp2(scores - normaliser[None, :])
        dp = _products(k, k_tail, G, G_tail, TAIL, PRECISION)
        ds = (p * (dp - mean[None, :]) * INVERSE_TAU).to(DOT)
        p = p.to(DOT)
        found += tl.dot(p, G, input_precision=PRECISION)
        found += tl.dot(ds, q, input_precision=PRECISION)
        if TAIL > 0:
            found_tail += tl.dot(p, G_tail, input_precision=PRECISION)
            found_tail += tl.dot(ds, q_tail, input_precision=PRECISION)
    _store(dkeys + at, found, column, tokens, between, 0, BLOCK, Y)
    if TAIL > 0:
        _store(dkeys + at, found_tail, column, tokens, between, BLOCK, TAIL, Y)


@triton.jit
def over_heads(  # type: ignore[no-untyped-def]
    tokens, heads, query, keys, shared, slopes, bias_self, bias_cross, direction, lse, delta, summed,
    INVERSE_TAU: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, SHARED: tl.constexpr,
    Y: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """Compute dS / tau of a tile of queries and keys; those above the diagonal stay as they are."""
    first = tl.program_id(0) * COLUMNS
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    if first >= (tl.program_id(1) + 1) * ROWS:
        return
    sequence = tl.program_id(2).to(tl.int64)
    column = first + tl.arange(0, COLUMNS)
    distance = row[:, None] - column[None, :]
    present = (row < tokens)[:, None] & (column < tokens)[None, :]
    shared += (sequence * tokens + tl.program_id(1) * ROWS) * tokens + first
    summed += (sequence * tokens + tl.program_id(1) * ROWS) * tokens + first
    pair = tl.arange(0, ROWS)[:, None] * tokens + tl.arange(0, COLUMNS)[None, :]
    of_all = tl.load(shared + pair, mask=present, other=0.0)  # (ROWS, COLUMNS)
    between, at = heads * Y, sequence * tokens * heads * Y
    found = tl.zeros((ROWS, COLUMNS), WIDE)
    for head in range(heads):
        slope, own, cross = _load_positions(slopes, bias_self, bias_cross, head, WIDE)
        q, q_tail = _load_both(query + at, row, tokens, between, Y, BLOCK, TAIL, DOT)  # (ROWS, BLOCK or TAIL)
        G, G_tail = _load_both(direction + at, row, tokens, between, Y, BLOCK, TAIL, DOT)
        k, k_tail = _load_both(keys + at, column, tokens, between, Y, BLOCK, TAIL, DOT)  # (COLUMNS, BLOCK or TAIL)
        normaliser, mean = _load_rows(lse, delta, sequence, row, tokens, heads, head)
        products = _products(q, q_tail, k, k_tail, TAIL, PRECISION) + of_all
        scores = _scores(products, distance, slope, own, cross, INVERSE_TAU, True)
        dp = _products(G, G_tail, k, k_tail, TAIL, PRECISION)
        found += tl.exp2(scores - normaliser[:, None]) * (dp - mean[:, None])
        at += Y
    tl.store(summed + pair, (found * INVERSE_TAU).to(summed.dtype.element_ty), mask=present)
