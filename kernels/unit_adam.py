"""The optimiser step of nGPT (arXiv 2410.01131, section 2.6): decoupled Adam, and rows that keep unit norm."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from paper_repro.kernels.dispatch import EXACT
from paper_repro.kernels.preferences import speed
from paper_repro.models.common import project_rows_, wide


@torch.no_grad()
def adam_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    step: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    unit_rows: bool,
) -> None:
    """Take one step of Adam with decoupled weight decay (arXiv 1412.6980, 1711.05101) of every parameter, in place.

    p <- (1 - lr weight_decay) p;  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
    p <- p - lr m' / (sqrt(v') + eps) with m' = m / (1 - b1^step), v' = v / (1 - b2^step);
    and, with ``unit_rows``, p <- p / |p| over the last dimension.

    Computed in float32 (float64 where the parameter is), each result rounded once to the dtype it is kept in: by
    torch's own fused Adam, then the projection, or by the definition for tensors that this does not take, and where
    the process prefers "reference".

    Args:
        parameters, gradients, first_moments, second_moments: p, g, m, v, one of each per parameter and of its shape.
        step: the number of this step, from 1.

    Raises:
        ValueError: shapes that differ, or a vector with ``unit_rows``.
    """
    taken, others = list[tuple[Tensor, ...]](), list[tuple[Tensor, ...]]()
    four: tuple[Tensor, ...]
    for four in zip(parameters, gradients, first_moments, second_moments, strict=True):
        if len({tensor.shape for tensor in four}) > 1:
            found = ", ".join(str(tuple(tensor.shape)) for tensor in four)
            raise ValueError(f"parameter, gradient and moments must have one shape, got {found}")
        if unit_rows and four[0].ndim < 2:
            raise ValueError(f"unit rows need a matrix (..., rows, D), got {tuple(four[0].shape)}")
        if four[0].numel():
            (taken if _fits(four) else others).append(four)
    if taken:
        steps = list(torch.full((len(taken),), step - 1.0, device=taken[0][0].device).unbind())
        tensors = [list(some) for some in zip(*taken, strict=True)]
        options: Any = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": weight_decay}
        options |= {"fused": True, "amsgrad": False, "maximize": False}
        adamw(tensors[0], tensors[1], tensors[2], tensors[3], [], steps, **options)
    for parameter, *_ in taken if unit_rows else []:
        # One reciprocal per row: a division of every number takes twice as long.
        parameter.mul_(torch.linalg.vector_norm(parameter, dim=-1, keepdim=True).reciprocal_())
    for four in others:
        p, g, m, v = (tensor.to(wide(four[0])) for tensor in four)  # (..., D) each
        p.mul_(1 - lr * weight_decay)
        m.lerp_(g, 1 - betas[0])
        v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        p.addcdiv_(m, v.sqrt().div_(math.sqrt(1 - betas[1] ** step)).add_(eps), value=-lr / (1 - betas[0] ** step))
        if unit_rows:
            project_rows_(p)
        for tensor, value in zip((four[0], *four[2:]), (p, m, v), strict=True):
            if value is not tensor:
                tensor.copy_(value)


def _fits(four: tuple[Tensor, ...]) -> bool:
    """Return whether torch's fused Adam is to step these tensors."""
    plain = all(type(tensor) in (Tensor, nn.Parameter) and tensor.is_contiguous() for tensor in four)
    alike = four[0].dtype in EXACT and len({(tensor.dtype, tensor.device) for tensor in four}) == 1
    return plain and alike and four[0].device.type in ("cpu", "cuda") and speed().implementation != "reference"
