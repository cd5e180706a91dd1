"""The definitions in plain PyTorch, differentiable to any order."""

import torch
from torch import Tensor
from torch.nn import functional


def scaled_swiglu(pre: Tensor, scale_u: Tensor | None, scale_nu: Tensor | None) -> Tensor:
    """Compute u s_u * silu(nu s_nu) of pre = [u, nu] (..., 2M): (..., M) in the dtype of ``pre``, float32 at least
    inside.
    """
    u, nu = pre.to(torch.promote_types(pre.dtype, torch.float32)).chunk(2, -1)
    up = u if scale_u is None else u * scale_u
    gate = nu if scale_nu is None else nu * scale_nu
    return (up * functional.silu(gate)).to(pre.dtype)


def folded(weight: Tensor, scale_u: Tensor | None, scale_nu: Tensor | None) -> Tensor:
    """Return W' (2M, D) with [u s_u, nu s_nu] = W' x where [u, nu] = W x."""
    half = weight.shape[0] // 2
    if scale_u is None and scale_nu is None:
        return weight
    one = weight.new_ones(1)
    rows = [(one if scale is None else scale).expand(half) for scale in (scale_u, scale_nu)]
    return weight * torch.cat(rows).unsqueeze(1)
