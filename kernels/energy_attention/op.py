"""CET's attention, which is the gradient of an energy: every token is read as a key and as a query.

Legend: B images, H heads, T tokens, Y head width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import ANY_FLOATS, Shapes, Way, choose, closed_form_way, triton_way
from paper_repro.models import common
from paper_repro.models.common import wide

PIECE = 1 << 17
"""Scores at once, 512 kB in float32, or those of one image where these are more."""


def _closed_form(
    query: Tensor, key: Tensor, gamma: float, *, out: tuple[Tensor, Tensor] | None, normaliser: bool
) -> tuple[Tensor, Tensor, Tensor]:
    by_query, by_key = out if out is not None else (torch.empty_like(query), torch.empty_like(key))
    lse = torch.empty(query.shape[:3] if normaliser else 0, dtype=wide(query), device=query.device)
    images = max(1, PIECE // (query.shape[1] * query.shape[2] ** 2))
    for first in range(0, len(query), images):
        piece = slice(first, first + images)
        q, k = query[piece].flatten(0, 1), key[piece].flatten(0, 1)  # (N H, T, Y)
        scores = torch.baddbmm(q.new_empty(()), q, k.mT, beta=0, alpha=gamma).to(lse.dtype)  # (N H, T, T)
        weights = torch.softmax(scores, -1).to(key.dtype)  # not in place, which takes longer
        read, read_back = torch.bmm(weights, k), torch.bmm(weights.mT, q)  # (N H, T, Y), before either is written
        by_query[piece] = read.view(query[piece].shape)
        by_key[piece] = read_back.view(query[piece].shape)
        if normaliser:
            lse[piece] = torch.logsumexp(scores, -1).view(lse[piece].shape)
    return by_query, by_key, lse


WIDEST = 128
"""The fused kernel holds whole rows of heads in registers."""
SHAPES = Shapes(query="B H T Y", key="B H T Y")


def energy_attention(
    query: Tensor,
    key: Tensor,
    gamma: float,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    normaliser: bool = True,
    implementation: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute P K, P^T Q and lse_n = log sum_m exp(gamma q_n . k_m), with P = softmax(gamma Q K^T) over all keys.

    With E = -1/gamma sum_hn lse_hn these are -dE/dQ, -dE/dK and the energy (Training a Convergent Energy Transformer
    with Equilibrium Propagation, equations 11 to 14).

    "fused" (Triton; the closed form beyond what it ``takes``) and "closed_form" (the scores of some images at a time)
    have no gradient.

    Args:
        query, key: (B, H, T, Y), of one dtype; rows of Y may lie apart.
        gamma: the inverse temperature, above 0.
        out: where to write the first two results instead of new tensors; these may be ``query`` and ``key``
            themselves.
        normaliser: whether lse is asked for; else it may have no numbers.

    Returns:
        P K and P^T Q, (B, H, T, Y), in the inputs' dtype, and lse (B, H, T) in float32 (float64 for float64).
    """
    SHAPES.check(query, key)
    if query.dtype != key.dtype:
        raise ValueError(f"query and key must have one dtype; got {query.dtype} and {key.dtype}")
    attend = choose("energy_attention", WAYS, implementation, (query, key), width=query.shape[3])
    return attend(query, key, float(gamma), out=out, normaliser=normaliser)


def _fused(
    query: Tensor, key: Tensor, gamma: float, *, out: tuple[Tensor, Tensor] | None, normaliser: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from paper_repro.kernels.energy_attention import triton

    if not triton.takes(query):
        return _closed_form(query, key, gamma, out=out, normaliser=normaliser)
    return triton.energy_attention(query, key, gamma, out)


WAYS: tuple[Way[Callable[..., tuple[Tensor, Tensor, Tensor]]], ...] = (
    triton_way(_fused, order=0, widest=WIDEST),
    closed_form_way(_closed_form, order=0, **ANY_FLOATS, auto_on=("cpu", "cuda")),
    Way("reference", common.energy_attention),
)
