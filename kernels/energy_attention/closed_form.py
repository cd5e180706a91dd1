"""The definition for a CPU without gradients: some images at a time, whose scores become exp(score - largest) in place.

P is not divided by its row sums: P K is, after the product, and for P^T Q the queries are, before it.  Each has Y
numbers a row where P has T.
"""

import torch
from torch import Tensor

from paper_repro.kernels.energy_attention.reference import wide

PIECE = 1 << 19
"""Scores at once, 2 MiB in float32, or those of one image where these are more."""


def energy_attention(
    query: Tensor, key: Tensor, gamma: float, out: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute P K, P^T Q and lse; as ``kernels.energy_attention``."""
    by_query, by_key = out if out is not None else (torch.empty_like(query), torch.empty_like(key))
    lse = torch.empty(query.shape[:3], dtype=wide(query), device=query.device)
    images = max(1, PIECE // (query.shape[1] * query.shape[2] ** 2))
    pieces = zip(*(tensor.split(images) for tensor in (query, key, by_query, by_key, lse)), strict=True)
    for q, k, into_query, into_key, into_lse in pieces:
        read, read_back, normaliser = _attend(q.flatten(0, 1), k.flatten(0, 1), gamma)
        into_query.copy_(read.view(q.shape))
        into_key.copy_(read_back.view(q.shape))
        into_lse.copy_(normaliser.view(into_lse.shape))
    return by_query, by_key, lse


def _attend(query: Tensor, key: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Attend for heads (B H, T, Y)."""
    scores = torch.bmm(query, key.mT).to(wide(query)).mul_(gamma)
    largest = scores.amax(-1, keepdim=True)
    scores.sub_(largest).exp_()
    total = scores.sum(-1, keepdim=True)
    weights = scores.to(key.dtype)
    read = torch.bmm(weights, key).div_(total)
    read_back = torch.bmm(weights.mT, (query / total).to(key.dtype))
    return read, read_back, total.log_().add_(largest)
