"""The definitions for a CPU without gradients, in fewer passes: a projection is a layer norm without weights."""

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.projected_step.reference import PROJECTION_EPS, reach_and_side


def projected_step(z: Tensor, target: Tensor, step_size: float) -> Tensor:
    """Compute z'; shapes as in ``kernels.projected_step``."""
    target = target.to(z.dtype)
    reached = target if step_size == 1 else torch.lerp(z, target, step_size)
    return functional.layer_norm(reached, z.shape[-1:], eps=PROJECTION_EPS)


def image_step(
    y: Tensor, patches: Tensor, bias: Tensor, step_size: float, wanted: Tensor | None, beta: Tensor | None
) -> Tensor:
    """Compute y'; shapes as in ``kernels.projected_step``."""
    (reach, side), own = reach_and_side(patches, y), y.shape[3]
    target = torch.empty_like(y, memory_format=torch.contiguous_format).copy_(bias)
    for index, part in enumerate(patches.unflatten(1, (side, side)).split(own, -1)):
        i, j = divmod(index, reach)
        target[:, i : i + side, j : j + side] += part
    if wanted is not None and beta is not None:
        target.addcmul_(y - wanted, beta.view(-1, 1, 1, 1), value=-2)
    return target if step_size == 1 else torch.lerp(y, target, step_size)
