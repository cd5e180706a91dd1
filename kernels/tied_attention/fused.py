"""Attention whose values are its keys in Triton: a program takes some queries (or keys) of some heads of one sequence.

What the diagonal adds to a score is the same for all heads: a program computes it once per tile of queries and keys, a
part of the width at a time, for its heads, which are all of them where they fit in the registers; without a diagonal a
program takes a few.  The softmax is taken on the way; every sum has a fixed order, nothing is added atomically.

The backward pass (formulas: see ``closed_form``) goes over queries for dq, then over keys for both terms of dk.  The
first also writes dS, which is ds summed over heads, (B, T, T), in the keys' dtype, and du and d(h d) are matrix
products of it.  Summing them in the kernels would take D numbers a row beside the H Y of dq or dk, 48 kB of registers
for 16 rows at D = 768, as many as the heads have; dS takes 64 MiB at B = 8 and T = 2,048 in bfloat16, once for each
group of heads (one or two in the paper's models), whatever S is, and is gone when the inner step is.

Legend: B sequences, T tokens, D width, H heads, Y head width.
"""

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.tied_attention.reference import Positions, wide
from paper_repro.kernels.tied_attention.tiles import Tiles, tiles

PART = 64
"""Columns of the width at once in the score that heads share."""
_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Attention:
    """As ``closed_form.Attention``; computed in float32 (float64 where an input is).

    Query, keys, state and context may have different dtypes; products of matrices are computed in the keys' dtype, in
    float32 with TF32 only where torch.set_float32_matmul_precision allows it.
    """

    def __init__(self, keys: Tensor, context: Tensor | None, positions: Positions, tau: float) -> None:
        self.keys, self.tau = keys.contiguous(), tau
        self.context = None if context is None else context.to(keys.dtype).contiguous()
        self.positions = Positions(*(value.contiguous() for value in positions))
        self.wide = wide(keys)
        self.dkeys: Tensor | None = None
        self.dcontext: Tensor | None = None
        self.diagonal = torch.zeros((), dtype=self.wide, device=keys.device)

    def forward(self, query: Tensor, state: Tensor | None, lse: Tensor) -> Tensor:
        """Compute o (B, T, H, Y) of q (B, T, H, Y) and u (B, T, D); fills ``lse``, (B, T, H)."""
        query, state = self._read(query), self._read(state)
        out, plan = torch.empty_like(self.keys), self._tiles(1)
        with torch.cuda.device_of(query):
            _forward[self._grid(plan)](
                *self._inputs(query, state), out, lse, **self._constants(plan), ROWS=plan.own, COLUMNS=plan.other
            )
        return out

    def backward(
        self, direction: Tensor, query: Tensor, state: Tensor | None, lse: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return o, computed again unless it is given as ``out``, and dq and du, given G (B, T, H, Y)."""
        direction, query, state = self._read(direction), self._read(query), self._read(state)
        out = self.forward(query, state, torch.empty_like(lse)) if out is None else out.contiguous()
        if self.dkeys is None:
            self.dkeys = torch.zeros(self.keys.shape, dtype=self.wide, device=self.keys.device)
        plan, (sequences, tokens) = self._tiles(1), query.shape[:2]
        grid = self._grid(plan)
        delta, dquery = torch.empty_like(lse), torch.empty_like(query)
        partial = torch.empty(grid[::-1], dtype=self.wide, device=query.device)
        summed = query.new_zeros(grid[1], sequences, tokens, tokens) if state is not None else query
        given = *self._inputs(query, state), direction, lse, delta
        with torch.cuda.device_of(query):
            _to_queries[grid](
                *given, out, dquery, summed, partial, **self._constants(plan), ROWS=plan.own, COLUMNS=plan.other
            )
            plan = self._tiles(2)
            _to_keys[self._grid(plan)](*given, self.dkeys, **self._constants(plan), ROWS=plan.other, COLUMNS=plan.own)
        self.diagonal += partial.sum()
        return out, dquery, None if state is None else self._through_shared(state, summed)

    def gradients(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Return the gradients of the keys, h d, bias_self and bias_cross."""
        assert self.dkeys is not None
        return self.dkeys, self.dcontext, self.diagonal, -self.diagonal

    def _through_shared(self, state: Tensor, summed: Tensor) -> Tensor:
        """Compute du, and add to d(h d), given dS / tau of each group of heads, (groups, B, T, T)."""
        assert self.context is not None
        found = summed[0] if len(summed) == 1 else summed.sum(0)
        dcontext = torch.bmm(found.mT, state)  # (B, T, D)
        self.dcontext = dcontext.to(self.wide) if self.dcontext is None else self.dcontext.add_(dcontext)
        return torch.bmm(found, self.context)

    def _read(self, tensor: Any) -> Any:
        return None if tensor is None else tensor.to(self.keys.dtype).contiguous()

    def _inputs(self, query: Tensor, state: Tensor | None) -> tuple[Any, ...]:
        """Return what all kernels read; without a diagonal anything stands for u and h d."""
        shared = (query, query) if state is None else (state, self.context)
        return *self.keys.shape[1:3], query, self.keys, *shared, *self.positions

    def _tiles(self, reads: int) -> Tiles:
        heads, width = self.keys.shape[2:]
        return tiles(heads, width, self.context is not None, self.keys.element_size(), reads)

    def _grid(self, plan: Tiles) -> tuple[int, int, int]:
        sequences, tokens, heads, _ = self.keys.shape
        return triton.cdiv(tokens, plan.own), triton.cdiv(heads, plan.group), sequences

    def _constants(self, plan: Tiles) -> dict[str, Any]:
        dtype = self.keys.dtype
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        exact = dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
        return {
            "WIDE": _TYPES[self.wide],
            "DOT": _TYPES[self.wide if interpreted else dtype],
            "PRECISION": "ieee" if exact else "tf32",
            "INVERSE_TAU": 1 / self.tau,
            "Y": self.keys.shape[3],
            "D": 0 if self.context is None else self.context.shape[2],
            "GROUP": plan.group,
            "BLOCK": plan.block,
            "PART": PART,
            "num_warps": plan.warps,
            "num_stages": 2,
        }


@triton.jit
def _load_positions(slopes, bias_self, bias_cross, head, heads, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    slope = tl.load(slopes + head, mask=head < heads, other=0.0).to(WIDE)
    return slope, tl.load(bias_self).to(WIDE), tl.load(bias_cross).to(WIDE)


@triton.jit
def _load_heads(  # type: ignore[no-untyped-def]
    x, sequence, token, head, tokens, heads, Y: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr
):
    """Load (heads of the group, tokens of the tile, BLOCK) of (B, T, H, Y)."""
    at, inside = _heads_at(sequence, token, head, tokens, heads, Y, BLOCK)
    return tl.load(x + at, mask=inside, other=0.0).to(DOT)


@triton.jit
def _heads_at(  # type: ignore[no-untyped-def]
    sequence, token, head, tokens, heads, Y: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.arange(0, BLOCK)[None, None, :]
    token = token[None, :, None]
    head = head[:, None, None]
    at = ((sequence * tokens + token) * heads + head) * Y + column
    return at, (token < tokens) & (head < heads) & (column < Y)


@triton.jit
def _normaliser_at(sequence, token, head, tokens, heads):  # type: ignore[no-untyped-def]
    """Return where the numbers of (B, T, H) lie."""
    token = token[None, :]
    head = head[:, None]
    return (sequence * tokens + token) * heads + head, (token < tokens) & (head < heads)


@triton.jit
def _load_part(x, sequence, token, part, tokens, D: tl.constexpr, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load some columns of the tokens of a tile, of (B, T, D)."""
    at = (sequence * tokens + token)[:, None] * D + part
    return tl.load(x + at, mask=(token < tokens)[:, None] & (part < D), other=0.0).to(DOT)


@triton.jit
def _scores(  # type: ignore[no-untyped-def]
    q,
    k,
    state,
    context,
    slope,
    own,
    cross,
    sequence,
    row,
    column,
    tokens,
    INVERSE_TAU: tl.constexpr,
    D: tl.constexpr,
    PART: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute s_ijk of a tile, (heads of the group, rows, columns); minus infinity where j > i. Without a diagonal D is
    0.
    """
    scores = tl.dot(q, tl.permute(k, (0, 2, 1)), input_precision=PRECISION)
    if D > 0:
        shared = tl.zeros((row.shape[0], column.shape[0]), slope.dtype)
        for start in range(0, D, PART):
            part = (start + tl.arange(0, PART))[None, :]
            u = _load_part(state, sequence, row, part, tokens, D, q.dtype)
            c = _load_part(context, sequence, column, part, tokens, D, q.dtype)
            shared += tl.dot(u, tl.trans(c), input_precision=PRECISION)
        scores += shared[None, :, :]
    distance = row[:, None] - column[None, :]
    bias = tl.where(distance == 0, own, cross)
    scores = scores * INVERSE_TAU + bias[None, :, :] - slope[:, None, None] * distance.to(slope.dtype)[None, :, :]
    return tl.where((distance >= 0)[None, :, :], scores, float("-inf"))


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    tokens,
    heads,
    query,
    keys,
    state,
    context,
    slopes,
    bias_self,
    bias_cross,
    out,
    lse,
    INVERSE_TAU: tl.constexpr,
    WIDE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    Y: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    row = tile * ROWS + tl.arange(0, ROWS)
    slope, own, cross = _load_positions(slopes, bias_self, bias_cross, head, heads, WIDE)
    q = _load_heads(query, sequence, row, head, tokens, heads, Y, BLOCK, DOT)  # (GROUP, ROWS, BLOCK)
    read = tl.zeros((GROUP, ROWS, BLOCK), WIDE)  # (GROUP, ROWS, BLOCK)
    total = tl.zeros((GROUP, ROWS), WIDE)
    largest = tl.full((GROUP, ROWS), float("-inf"), WIDE)
    for start in range(0, tl.minimum((tile + 1) * ROWS, tokens), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        k = _load_heads(keys, sequence, column, head, tokens, heads, Y, BLOCK, DOT)  # (GROUP, COLUMNS, BLOCK)
        scores = _scores(
            q, k, state, context, slope, own, cross, sequence, row, column, tokens, INVERSE_TAU, D, PART, PRECISION
        )
        above = tl.maximum(largest, tl.max(scores, axis=2))  # (GROUP, ROWS)
        kept = tl.exp(largest - above)
        p = tl.exp(scores - above[:, :, None])
        total = total * kept + tl.sum(p, axis=2)
        read = read * kept[:, :, None] + tl.dot(p.to(DOT), k, input_precision=PRECISION)
        largest = above
    at, inside = _heads_at(sequence, row, head, tokens, heads, Y, BLOCK)
    tl.store(out + at, (read / total[:, :, None]).to(out.dtype.element_ty), mask=inside)
    at, inside = _normaliser_at(sequence, row, head, tokens, heads)
    tl.store(lse + at, largest + tl.log(total), mask=inside)


@triton.jit
def _to_queries(  # type: ignore[no-untyped-def]
    tokens,
    heads,
    query,
    keys,
    state,
    context,
    slopes,
    bias_self,
    bias_cross,
    direction,
    lse,
    delta,
    out,
    dquery,
    summed,
    partial,
    INVERSE_TAU: tl.constexpr,
    WIDE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    Y: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    row = tile * ROWS + tl.arange(0, ROWS)
    slope, own, cross = _load_positions(slopes, bias_self, bias_cross, head, heads, WIDE)
    q = _load_heads(query, sequence, row, head, tokens, heads, Y, BLOCK, DOT)  # (GROUP, ROWS, BLOCK)
    G = _load_heads(direction, sequence, row, head, tokens, heads, Y, BLOCK, DOT)
    o = _load_heads(out, sequence, row, head, tokens, heads, Y, BLOCK, DOT)
    at, inside = _normaliser_at(sequence, row, head, tokens, heads)
    normaliser = tl.load(lse + at, mask=inside, other=float("inf"))
    mean = tl.sum(G.to(WIDE) * o.to(WIDE), axis=2)
    tl.store(delta + at, mean, mask=inside)
    total = tl.zeros((GROUP, ROWS, BLOCK), WIDE)
    diagonal = tl.zeros((ROWS,), WIDE)
    summed += (tl.program_id(1) * tl.num_programs(2) + sequence) * tokens * tokens
    for start in range(0, tl.minimum((tile + 1) * ROWS, tokens), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        k = _load_heads(keys, sequence, column, head, tokens, heads, Y, BLOCK, DOT)  # (GROUP, COLUMNS, BLOCK)
        scores = _scores(
            q, k, state, context, slope, own, cross, sequence, row, column, tokens, INVERSE_TAU, D, PART, PRECISION
        )
        dp = tl.dot(G, tl.permute(k, (0, 2, 1)), input_precision=PRECISION)  # (GROUP, ROWS, COLUMNS)
        ds = tl.exp(scores - normaliser[:, :, None]) * (dp - mean[:, :, None])
        total += tl.dot(ds.to(DOT), k, input_precision=PRECISION)
        of_heads = tl.sum(ds, axis=0)  # (ROWS, COLUMNS)
        diagonal += tl.sum(tl.where(row[:, None] == column[None, :], of_heads, 0.0), axis=1)
        if D > 0:
            pair = row.to(tl.int64)[:, None] * tokens + column[None, :]
            present = (row < tokens)[:, None] & (column < tokens)[None, :]
            tl.store(summed + pair, (of_heads * INVERSE_TAU).to(summed.dtype.element_ty), mask=present)
    at, inside = _heads_at(sequence, row, head, tokens, heads, Y, BLOCK)
    tl.store(dquery + at, (total * INVERSE_TAU).to(dquery.dtype.element_ty), mask=inside)
    place = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tile
    tl.store(partial + place, tl.sum(diagonal, axis=0))


@triton.jit
def _to_keys(  # type: ignore[no-untyped-def]
    tokens,
    heads,
    query,
    keys,
    state,
    context,
    slopes,
    bias_self,
    bias_cross,
    direction,
    lse,
    delta,
    dkeys,
    INVERSE_TAU: tl.constexpr,
    WIDE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    Y: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    sequence = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    slope, own, cross = _load_positions(slopes, bias_self, bias_cross, head, heads, WIDE)
    k = _load_heads(keys, sequence, column, head, tokens, heads, Y, BLOCK, DOT)  # (GROUP, COLUMNS, BLOCK)
    total = tl.zeros((GROUP, COLUMNS, BLOCK), WIDE)
    for start in range(tl.program_id(0) * COLUMNS // ROWS * ROWS, tokens, ROWS):
        row = start + tl.arange(0, ROWS)
        q = _load_heads(query, sequence, row, head, tokens, heads, Y, BLOCK, DOT)  # (GROUP, ROWS, BLOCK)
        G = _load_heads(direction, sequence, row, head, tokens, heads, Y, BLOCK, DOT)
        at, inside = _normaliser_at(sequence, row, head, tokens, heads)
        normaliser = tl.load(lse + at, mask=inside, other=float("inf"))
        mean = tl.load(delta + at, mask=inside, other=0.0)
        scores = _scores(
            q, k, state, context, slope, own, cross, sequence, row, column, tokens, INVERSE_TAU, D, PART, PRECISION
        )
        p = tl.exp(scores - normaliser[:, :, None])
        dp = tl.dot(G, tl.permute(k, (0, 2, 1)), input_precision=PRECISION)  # (GROUP, ROWS, COLUMNS)
        ds = p * (dp - mean[:, :, None]) * INVERSE_TAU
        total += tl.dot(tl.permute(p.to(DOT), (0, 2, 1)), G, input_precision=PRECISION)
        total += tl.dot(tl.permute(ds.to(DOT), (0, 2, 1)), q, input_precision=PRECISION)
    at, inside = _heads_at(sequence, column, head, tokens, heads, Y, BLOCK)
    tl.store(dkeys + at, tl.load(dkeys + at, mask=inside, other=0.0) + total, mask=inside)
