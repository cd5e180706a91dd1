"""The definition: causal softmax attention, differentiable to any order.  Holds H T^2 scores per sequence.

Legend: B sequences, H heads, T tokens, Y channels of a head, Z channels of its values.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
    """softmax_j(scale q_i . k_j) v_j over j <= i, (B, H, T, Z); shapes as in ``kernels.causal_attention``."""
    probabilities = torch.softmax(_scores(query, key, scale), -1)  # (B, H, T, T)
    if dropout:
        probabilities = functional.dropout(probabilities, dropout)
    return torch.matmul(probabilities.to(value.dtype), value)  # (B, H, T, Z)


def causal_attention_with_lse(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """Return the same without dropout, and log sum_j exp(scale q_i . k_j), (B, H, T)."""
    scores = _scores(query, key, scale)  # (B, H, T, T)
    return torch.matmul(torch.softmax(scores, -1).to(value.dtype), value), scores.logsumexp(-1)


def _scores(query: Tensor, key: Tensor, scale: float | None) -> Tensor:
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = torch.matmul(query, key.mT).to(dtype)  # (B, H, T, T)
    scores = scores * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)  # (T, T)
    return scores.masked_fill(future, -math.inf)
