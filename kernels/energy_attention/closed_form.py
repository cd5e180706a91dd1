"""The definition for a CPU without gradients: the scores of some images at a time, in one pass each way."""

import torch
from torch import Tensor

from paper_repro.kernels.energy_attention.reference import wide

PIECE = 1 << 17
"""Scores at once, 512 kB in float32, or those of one image where these are more."""


def energy_attention(
    query: Tensor, key: Tensor, gamma: float, out: tuple[Tensor, Tensor] | None, normaliser: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute P K, P^T Q and lse; as ``kernels.energy_attention``.

    Without ``normaliser`` the third result has no numbers.
    """
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
