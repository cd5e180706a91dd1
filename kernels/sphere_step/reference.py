"""The definition: steps on the unit sphere, differentiable to any order."""

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """Compute x / |x| over the last dimension, without an epsilon."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def sphere_step(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool) -> Tensor:
    """Compute unit(h + a (unit(f) - h))."""
    state, u, a = _wide(h, f, alpha, absolute)
    return unit(torch.lerp(state, u, a)).to(h.dtype)


def riemannian_step(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool) -> Tensor:
    """Compute unit(h - a (h (h . u) - u)), u = unit(f)."""
    state, u, a = _wide(h, f, alpha, absolute)
    gradient = state * (state * u).sum(-1, keepdim=True) - u
    return unit(state - a * gradient).to(h.dtype)


def wide(*tensors: Tensor) -> torch.dtype:
    """Return what these are computed in: float32, or float64 where one of them is."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def _wide(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool) -> tuple[Tensor, Tensor, Tensor]:
    dtype = wide(h, f, alpha)
    a = alpha.to(dtype)
    return h.to(dtype), unit(f.to(dtype)), a.abs() if absolute else a
