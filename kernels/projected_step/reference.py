"""The definition: steps towards t = x - dE/dx, of tokens that stay on their spheres and of an image, to any order."""

import torch
from torch import Tensor

PROJECTION_EPS = 1e-12
"""Under the root, as in the golden records: a constant token would divide by zero."""


def project(z: Tensor) -> Tensor:
    """Return the nearest tokens of mean 0 and population standard deviation 1: of each row of (..., D) (equation 2)."""
    centred = z - z.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + PROJECTION_EPS)


def projected_step(z: Tensor, target: Tensor, step_size: float) -> Tensor:
    """Compute z'; shapes as in ``kernels.projected_step``."""
    return project(torch.lerp(z, target.to(z.dtype), step_size))


def image_step(
    y: Tensor, patches: Tensor, bias: Tensor, step_size: float, wanted: Tensor | None, beta: Tensor | None
) -> Tensor:
    """Compute y'; shapes as in ``kernels.projected_step``."""
    target = fold(patches.to(y.dtype), y) + bias
    if wanted is not None and beta is not None:
        target = target - 2 * beta.view(-1, 1, 1, 1) * (y - wanted)
    return torch.lerp(y, target, step_size)


def fold(patches: Tensor, y: Tensor) -> Tensor:
    """Add up patches (B, n^2, k^2 C) where they overlap, as blocks like y, (B, n + k - 1, n + k - 1, C)."""
    (reach, side), own = reach_and_side(patches, y), y.shape[3]
    out = torch.zeros_like(y)
    for index, part in enumerate(patches.unflatten(1, (side, side)).split(own, -1)):
        i, j = divmod(index, reach)
        out[:, i : i + side, j : j + side] += part
    return out


def reach_and_side(patches: Tensor, y: Tensor) -> tuple[int, int]:
    """Return k and n of ``fold``."""
    reach, side = (round(count**0.5) for count in (patches.shape[2] / y.shape[3], patches.shape[1]))
    return reach, side
