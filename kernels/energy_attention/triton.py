"""Both ways to read a softmax in Triton, without writing it; every sum has a fixed order, nothing is added atomically.

Up to 128 tokens of up to 256 bytes a head, the paper's 121 among them, one program takes a head of an image: queries,
keys and the T^2 weights are on the chip together, so that scores are computed once and inputs read once, before
anything is written: results may overwrite them.  Beyond, one pass over keys for P K and lse, then one over queries for
P^T Q, which computes the scores again.  So are exact float32 products, which no matrix unit computes: their multiplied
out code of 128 tokens takes minutes to compile.

Legend: B images, H heads, T tokens, Y head width.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.dispatch import wide
from paper_repro.kernels.triton import product_constants

WHOLE_TOKENS, WHOLE_BYTES = 128, 256
"""Tokens, and bytes of a token's head, of the largest program that takes all tokens at once."""
LEAST, EXACT_TILE, TILE = 16, 32, 64
"""Tokens of a tile: what a matrix product takes at least; of a program that goes over many, at most without TF32 or 16
bits, and with them."""
EXACT_NUMBERS = 2048
"""Numbers of a tile without TF32 or 16 bits: of 32 x 128, multiplied out, some find no register."""


def energy_attention(
    query: Tensor, key: Tensor, gamma: float, out: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute P K, P^T Q and lse; as ``kernels.energy_attention``."""
    query, key = _rows(query), _rows(key)
    images, heads, tokens, _ = query.shape
    constants = _constants(query, gamma)
    exact = query.element_size() > 2 and constants["PRECISION"] == "ieee"
    whole = takes_whole(tokens, constants["BLOCK"], query.element_size(), exact)
    direct = out is not None and whole and all(_addressable(part) for part in out)
    by_query, by_key = out if out is not None and direct else (torch.empty_like(query), torch.empty_like(key))
    lse = torch.empty(query.shape[:3], dtype=wide(query), device=query.device)  # (B, H, T)
    given = tokens, heads, query, key, by_query, by_key, lse
    strides = [stride for tensor in (query, key, by_query, by_key) for stride in tensor.stride()[:3]]
    with torch.cuda.device_of(query):
        if whole:
            tile = max(LEAST, triton.next_power_of_2(tokens))
            _whole[(1, heads, images)](*given, *strides, **constants, TILE=tile, num_warps=8 if tile > TILE else 4)
        else:
            tile = max(LEAST, min(EXACT_TILE, EXACT_NUMBERS // constants["BLOCK"])) if exact else TILE
            grid = triton.cdiv(tokens, tile), heads, images
            for kernel in (_over_keys, _over_queries):
                # Beside exact products, which are multiplied out, the next tile would find no registers.
                kernel[grid](*given, *strides, **constants, TILE=tile, num_warps=4, num_stages=1 if exact else 2)
    if out is not None and not direct:
        by_query, by_key = out[0].copy_(by_query), out[1].copy_(by_key)
    return by_query, by_key, lse


def takes_whole(tokens: int, block: int, element_size: int, exact: bool) -> bool:
    """Return whether a program takes all tokens of a head at once; ``exact``: float32 or float64 without TF32."""
    return not exact and tokens <= WHOLE_TOKENS and block * element_size <= WHOLE_BYTES


def _rows(x: Tensor) -> Tensor:
    return x if _addressable(x) else x.contiguous()


def _addressable(x: Tensor) -> bool:
    """Return whether rows are contiguous, and the numbers of a head less than 2^31 apart: offsets have 32 bits."""
    return x.stride(3) == 1 and x.shape[2] * x.stride(2) < 1 << 31


def _constants(query: Tensor, gamma: float) -> dict[str, Any]:
    block = max(LEAST, triton.next_power_of_2(query.shape[3]))
    return {"GAMMA": gamma, **product_constants(query), "Y": query.shape[3], "BLOCK": block}


@triton.jit
def _at(token, tokens, by_image, by_head, by_token, Y: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Find where tokens of this program's head of this program's image lie, and which are there.

    Only where the head begins takes 64 bits: offsets of 64 bits would take registers for each number of a tile.
    """
    column = tl.arange(0, BLOCK)[None, :]
    start = tl.program_id(2).to(tl.int64) * by_image + tl.program_id(1).to(tl.int64) * by_head
    return start + (token[:, None] * by_token + column), (token < tokens)[:, None] & (column < Y)


@triton.jit
def _load(  # type: ignore[no-untyped-def]
    x, token, tokens, by_image, by_head, by_token, Y: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr
):
    at, inside = _at(token, tokens, by_image, by_head, by_token, Y, BLOCK)
    return tl.load(x + at, mask=inside, other=0.0).to(DOT)


@triton.jit
def _store(  # type: ignore[no-untyped-def]
    x, value, token, tokens, by_image, by_head, by_token, Y: tl.constexpr, BLOCK: tl.constexpr
):
    at, inside = _at(token, tokens, by_image, by_head, by_token, Y, BLOCK)
    tl.store(x + at, value.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _lse_at(lse, token, tokens, heads):  # type: ignore[no-untyped-def]
    return lse + (tl.program_id(2).to(tl.int64) * heads + tl.program_id(1)) * tokens + token


@triton.jit
def _whole(  # type: ignore[no-untyped-def]
    tokens, heads, query, key, by_query, by_key, lse, q_image, q_head, q_token, k_image, k_head, k_token, bq_image,
    bq_head, bq_token, bk_image, bk_head, bk_token,
    GAMMA: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, Y: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):
    token = tl.arange(0, TILE)
    q = _load(query, token, tokens, q_image, q_head, q_token, Y, BLOCK, DOT)  # (TILE, BLOCK)
    k = _load(key, token, tokens, k_image, k_head, k_token, Y, BLOCK, DOT)  # (TILE, BLOCK)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION).to(WIDE) * GAMMA  # (TILE, TILE)
    scores = tl.where((token < tokens)[None, :], scores, float("-inf"))
    largest = tl.max(scores, axis=1)  # (TILE,)
    p = tl.exp(scores - largest[:, None])
    total = tl.sum(p, axis=1)
    p = (p / total[:, None]).to(DOT)
    of_keys = tl.dot(p, k, input_precision=PRECISION)  # (TILE, BLOCK)
    # Queries beyond the last are zeros, so that their rows of P add nothing.
    of_queries = tl.dot(tl.trans(p), q, input_precision=PRECISION)
    _store(by_query, of_keys, token, tokens, bq_image, bq_head, bq_token, Y, BLOCK)
    _store(by_key, of_queries, token, tokens, bk_image, bk_head, bk_token, Y, BLOCK)
    tl.store(_lse_at(lse, token, tokens, heads), largest + tl.log(total), mask=token < tokens)


@triton.jit
def _over_keys(  # type: ignore[no-untyped-def]
    tokens, heads, query, key, by_query, by_key, lse, q_image, q_head, q_token, k_image, k_head, k_token, bq_image,
    bq_head, bq_token, bk_image, bk_head, bk_token,
    GAMMA: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, Y: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    q = _load(query, token, tokens, q_image, q_head, q_token, Y, BLOCK, DOT)  # (TILE, BLOCK)
    read = tl.zeros((TILE, BLOCK), WIDE)
    total = tl.zeros((TILE,), WIDE)
    largest = tl.full((TILE,), float("-inf"), WIDE)
    for start in range(0, tokens, TILE):
        other = start + tl.arange(0, TILE)
        k = _load(key, other, tokens, k_image, k_head, k_token, Y, BLOCK, DOT)  # (TILE, BLOCK)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION).to(WIDE) * GAMMA  # (TILE, TILE)
        scores = tl.where((other < tokens)[None, :], scores, float("-inf"))
        above = tl.maximum(largest, tl.max(scores, axis=1))
        kept = tl.exp(largest - above)
        p = tl.exp(scores - above[:, None])
        total = total * kept + tl.sum(p, axis=1)
        read = read * kept[:, None] + tl.dot(p.to(DOT), k, input_precision=PRECISION)
        largest = above
    _store(by_query, read / total[:, None], token, tokens, bq_image, bq_head, bq_token, Y, BLOCK)
    tl.store(_lse_at(lse, token, tokens, heads), largest + tl.log(total), mask=token < tokens)


@triton.jit
def _over_queries(  # type: ignore[no-untyped-def]
    tokens, heads, query, key, by_query, by_key, lse, q_image, q_head, q_token, k_image, k_head, k_token, bq_image,
    bq_head, bq_token, bk_image, bk_head, bk_token,
    GAMMA: tl.constexpr, WIDE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, Y: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    k = _load(key, token, tokens, k_image, k_head, k_token, Y, BLOCK, DOT)  # (TILE, BLOCK)
    read = tl.zeros((TILE, BLOCK), WIDE)
    for start in range(0, tokens, TILE):
        other = start + tl.arange(0, TILE)
        q = _load(query, other, tokens, q_image, q_head, q_token, Y, BLOCK, DOT)  # (TILE, BLOCK)
        normaliser = tl.load(_lse_at(lse, other, tokens, heads), mask=other < tokens, other=float("inf"))
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION).to(WIDE) * GAMMA  # (TILE, TILE)
        p = tl.exp(scores - normaliser[:, None])
        read += tl.dot(tl.trans(p.to(DOT)), q, input_precision=PRECISION)
    _store(by_key, read, token, tokens, bk_image, bk_head, bk_token, Y, BLOCK)
