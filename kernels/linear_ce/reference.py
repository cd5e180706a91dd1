"""The definition: all logits at once, in plain PyTorch, differentiable to any order."""

import torch
from torch import Tensor
from torch.nn import functional


def linear_cross_entropy(
    h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """Compute the cross entropy of z_v = scale_v (weight_v . h), in float32 at least; reduction "mean", "sum" or "none"
    (...).
    """
    logits = functional.linear(h, weight)
    if scale is not None:
        logits = logits * scale
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    loss = functional.cross_entropy(
        logits.reshape(-1, weight.shape[0]), targets.reshape(-1), ignore_index=ignore_index, reduction=reduction
    )
    return loss.reshape(targets.shape) if reduction == "none" else loss
