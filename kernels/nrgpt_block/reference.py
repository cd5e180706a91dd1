"""The definition: the energies of an NRGPT block, and their gradients written out, differentiable to any order.

Legend: B sequences, T tokens, D width, H heads, M hidden width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional


def gelu_slope(factor: Tensor, z: Tensor) -> Tensor:
    """Compute factor * gelu'(z), gelu'(z) = Phi(z) + z pdf(z) of the exact GELU, in one pass; autograd goes through
    both.
    """
    return torch.ops.aten.gelu_backward(factor, z)


def attention_energy(query: Tensor, key: Tensor, beta: float) -> Tensor:
    """Compute -1/beta sum_h log sum_{B <= A} exp(beta q_A . k_Bh), (B, T), of q (B, T, D), k (B, H, T, D) (NRGPT,
    equation 11).

    Holds H T^2 scores per sequence.  For the mask B < A give queries 1 ... T-1 and keys 0 ... T-2.
    """
    scores = beta * torch.matmul(query.unsqueeze(1), key.mT)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
    return -scores.masked_fill(future, -math.inf).logsumexp(-1).sum(1) / beta


def one_layer_energy(g: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute FF1's energy -|gelu(W1 g + b1)|^2, (...,), of g (..., D), W1 (M, D)."""
    return -functional.gelu(functional.linear(g, weight, bias)).square().sum(-1)


def one_layer_gradient(g: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute -2 W1^T (gelu(z) * gelu'(z)) with z = W1 g + b1; (..., D)."""
    z = functional.linear(g, weight, bias)
    return -2 * torch.matmul(gelu_slope(functional.gelu(z), z), weight)


def two_weight_energy(g: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    """Compute FF2W's energy -g . (W2 gelu(W1 g + b1) + b2), (...,), of g (..., D), W1 (M, D), W2 (D, M)."""
    hidden = functional.gelu(functional.linear(g, up, up_bias))
    return -(g * functional.linear(hidden, down, down_bias)).sum(-1)


def two_weight_gradient(g: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    """Compute -(W2 gelu(z) + b2 + W1^T (gelu'(z) * W2^T g)) with z = W1 g + b1; (..., D)."""
    z = functional.linear(g, up, up_bias)
    through = torch.matmul(gelu_slope(torch.matmul(g, down), z), up)
    return -(functional.linear(functional.gelu(z), down, down_bias) + through)
