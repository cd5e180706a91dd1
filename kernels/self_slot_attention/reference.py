"""The definition: a softmax over the observed columns and one's own, differentiable to any order.

It holds H T (T + lead) scores per sequence, and those of each sample.  Legend: B sequences, N samples, H heads, T
tokens, Y channels of a head, Z channels of its values.
"""

import math

import torch
from torch import Tensor


def self_slot_attention(
    query: Tensor, own_key: Tensor, own_value: Tensor, keys: Tensor, values: Tensor, lead: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute o (N B, H, T, Z) and lse (N B, H, T); shapes as in ``kernels.self_slot_attention``."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    tokens, columns = query.shape[2], keys.shape[2]
    rows = samples_to_rows(query, keys)  # (B, H, N T, Y)
    future = torch.full((tokens, columns), -math.inf, dtype=query.dtype, device=query.device).triu(1 + lead)
    future = future.repeat(rows.shape[2] // max(tokens, 1), 1).expand(*rows.shape[:2], -1, -1)  # (B, H, N T, T + lead)
    observed = torch.baddbmm(future.flatten(0, 1), rows.flatten(0, 1), keys.flatten(0, 1).mT, alpha=scale)
    own = (rows.to(dtype) * samples_to_rows(own_key, keys)).sum(-1, keepdim=True) * scale  # (B, H, N T, 1)
    scores = torch.cat((observed.view_as(future).to(dtype), own), -1)  # (B, H, N T, T + lead + 1)
    probabilities = torch.softmax(scores, -1).to(values.dtype)
    to_observed, to_own = probabilities.split((columns, 1), -1)
    out = torch.matmul(to_observed, values) + to_own * samples_to_rows(own_value, keys)  # (B, H, N T, Z)
    return rows_to_samples(out, query), rows_to_samples(scores.logsumexp(-1, keepdim=True), query).squeeze(-1)


def samples_to_rows(of_samples: Tensor, keys: Tensor) -> Tensor:
    """Return (N B, H, T, Y) as (B, H, N T, Y): all queries that read the same keys; a view where N is 1."""
    if of_samples.shape[0] == keys.shape[0]:
        return of_samples
    by_sample = of_samples.unflatten(0, (-1, keys.shape[0]))  # (N, B, H, T, Y)
    return by_sample.permute(1, 2, 0, 3, 4).flatten(2, 3)  # (B, H, N T, Y)


def rows_to_samples(rows: Tensor, query: Tensor) -> Tensor:
    """Return (B, H, N T, Y) as (N B, H, T, Y), for queries of that shape; the inverse of ``samples_to_rows``."""
    if rows.shape[0] == query.shape[0]:
        return rows
    by_sample = rows.unflatten(2, (-1, query.shape[2]))  # (B, H, N, T, Y)
    return by_sample.permute(2, 0, 1, 3, 4).flatten(0, 1)  # (N B, H, T, Y)
