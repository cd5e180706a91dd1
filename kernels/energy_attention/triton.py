"""Both ways to read a softmax in Triton, without writing it; every sum has a fixed order, nothing is added atomically.

A program takes a head of an image: queries, keys and the T^2 weights are on the chip together.  Inputs are read before
anything is written: results may overwrite them.

Legend: B images, H heads, T tokens, Y head width.
"""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper_repro.kernels.triton import product_constants
from paper_repro.models.common import wide

MOST_TOKENS, MOST_BYTES = 128, 256
"""Tokens, and bytes of a token's head, of the largest program; the paper has 121 and 64 numbers."""
LEAST = 16
"""Tokens and numbers that a matrix product takes at least."""


def takes(query: Tensor) -> bool:
    """Return whether the kernel takes these queries: few and short enough, and not exact float32 or float64.

    No matrix unit computes exact products: their multiplied out code of 128 tokens takes minutes to compile.
    """
    exact = query.element_size() > 2 and product_constants(query)["PRECISION"] == "ieee"
    if exact and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    block = triton.next_power_of_2(query.shape[3])
    return query.shape[2] <= MOST_TOKENS and (exact or block * query.element_size() <= MOST_BYTES)


def energy_attention(
    query: Tensor, key: Tensor, gamma: float, out: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute P K, P^T Q and lse of what the kernel ``takes``."""
    query, key = (x if _addressable(x) else x.contiguous() for x in (query, key))
    images, heads, tokens, width = query.shape
    direct = out is not None and all(_addressable(part) for part in out)
    by_query, by_key = out if out is not None and direct else (torch.empty_like(query), torch.empty_like(key))
    lse = torch.empty(query.shape[:3], dtype=wide(query), device=query.device)  # (B, H, T)
    strides = [stride for tensor in (query, key, by_query, by_key) for stride in tensor.stride()[:3]]
    tile = max(LEAST, triton.next_power_of_2(tokens))
    with torch.cuda.device_of(query):
        _whole[(1, heads, images)](
            tokens, heads, query, key, by_query, by_key, lse, *strides,
            GAMMA=gamma, **product_constants(query), Y=width, BLOCK=max(LEAST, triton.next_power_of_2(width)),
            TILE=tile, num_warps=8 if tile > 64 else 4,
        )
    if out is not None and not direct:
        by_query, by_key = out[0].copy_(by_query), out[1].copy_(by_key)
    return by_query, by_key, lse


def _addressable(x: Tensor) -> bool:
    """Return whether rows are contiguous, and the numbers of a head less than 2^31 apart: offsets have 32 bits."""
    return x.stride(3) == 1 and x.shape[2] * x.stride(2) < 1 << 31


@triton.jit
def _at(token, tokens, by_image, by_head, by_token, Y: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Find where tokens of this program's head and image lie, from its 64-bit start on in 32 bits, and which exist."""
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
    row = (tl.program_id(2).to(tl.int64) * heads + tl.program_id(1)) * tokens + token
    tl.store(lse + row, largest + tl.log(total), mask=token < tokens)
