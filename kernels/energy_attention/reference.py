"""The definition: both ways to read a softmax over keys, differentiable to any order.  Holds H T^2 scores an image."""

import torch
from torch import Tensor


def energy_attention(query: Tensor, key: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Compute P K, P^T Q and lse; shapes as in ``kernels.energy_attention``."""
    dtype = wide(query, key)
    scores = gamma * torch.matmul(query, key.mT).to(dtype)
    weights = torch.softmax(scores, -1).to(key.dtype)
    return torch.matmul(weights, key), torch.matmul(weights.mT, query), torch.logsumexp(scores, -1)


def wide(*tensors: Tensor) -> torch.dtype:
    """Return what scores are computed in: float32, or float64 where an input is."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
