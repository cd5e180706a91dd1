"""The definition: attention whose values are its keys, and S inner steps of it, differentiable to any order.

Legend: B sequences, T tokens, D width, H heads, Y head width, S inner steps.  Holds H T^2 scores per sequence and step.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Positions(NamedTuple):
    """What a score owes to its places alone: -slope_k (i - j) + (bias_self where i = j, else bias_cross)."""

    slopes: Tensor
    """(H,), without a gradient."""
    bias_self: Tensor
    bias_cross: Tensor


def tied_attention(
    query: Tensor, keys: Tensor, state: Tensor | None, context: Tensor | None, positions: Positions, tau: float
) -> tuple[Tensor, Tensor]:
    """Compute o (B, T, H, Y) and lse (B, T, H); shapes as in ``kernels.tied_attention``."""
    dtype = wide(query, keys)
    scores = torch.einsum("bikr,bjkr->bkij", query, keys).to(dtype)  # (B, H, T, T)
    if state is not None and context is not None:
        scores = scores + torch.einsum("bid,bjd->bij", state, context).unsqueeze(1)
    place = torch.arange(query.shape[1], device=query.device)
    distance = place.unsqueeze(1) - place  # (T, T)
    bias = torch.where(distance == 0, positions.bias_self, positions.bias_cross)
    scores = scores / tau + (bias - positions.slopes.view(-1, 1, 1) * distance).to(dtype)
    scores = scores.masked_fill(distance < 0, -torch.inf)
    out = torch.einsum("bkij,bjkr->bikr", torch.softmax(scores, -1).to(keys.dtype), keys)
    return out, torch.logsumexp(scores, -1).transpose(1, 2)


def descend(
    x: Tensor,
    keys: Tensor,
    reading: Tensor,
    writing: Tensor,
    context: Tensor | None,
    norm_weight: Tensor | None,
    positions: Positions,
    num_steps: int,
    step_size: float,
    tau: float,
    norm_eps: float,
) -> Tensor:
    """Compute x_S (B, T, D); shapes as in ``kernels.tied_attention``."""
    for _ in range(num_steps):
        u = x if norm_weight is None else functional.rms_norm(x, x.shape[-1:], norm_weight, norm_eps)
        query = functional.linear(u, reading).unflatten(-1, keys.shape[2:])  # (B, T, H, Y)
        out, _ = tied_attention(query, keys, None if context is None else u, context, positions, tau)
        x = x + step_size * (out.flatten(2) @ writing)  # (B, T, D)
    return x


def wide(*tensors: Tensor) -> torch.dtype:
    """Return what scores are computed in: float32, or float64 where an input is."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
