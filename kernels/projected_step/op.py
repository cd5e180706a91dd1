"""CET's step (Training a Convergent Energy Transformer with Equilibrium Propagation, equations 1 to 3): its two rows.

Legend: B images, D token width, n^2 patches of k x k blocks of C numbers, S = n + k - 1 blocks to a side.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from paper_repro.kernels.dispatch import Shapes, Way, choose, triton_way
from paper_repro.models import common
from paper_repro.models.common import reach_and_side

Step = Callable[..., Tensor]

SHAPES = Shapes(z="... D", target="... D")
IMAGE_SHAPES = Shapes(y="B S S C", patches="B P K", bias="C", wanted="B S S C", beta="B")
LONGEST_ROW = 8192
"""The fused kernels hold whole rows in registers."""


def projected_step(
    z: Tensor, target: Tensor, step_size: float, *, out: Tensor | None = None, implementation: str = "auto"
) -> Tensor:
    """Compute z' = Proj(z + eps (t - z)), (..., D), rows of mean 0 and population standard deviation 1.

    With t = z - dE/dz that is a projected step down E (equation 1).  "fused" (Triton) has no gradient.

    Args:
        z, target: (..., D); z's dtype is that of the result and of the computation.
        step_size: eps.
        out: where to write z', which may be z itself.
    """
    SHAPES.check(z, target)
    step = choose("projected_step", WAYS, implementation, (z, target), width=z.shape[-1])
    return step(z, target, float(step_size), out=out)


def image_step(
    y: Tensor,
    patches: Tensor,
    bias: Tensor,
    step_size: float,
    wanted: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    out: Tensor | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Compute y' = y + eps (t - y), (B, S, S, C), with t = fold(patches) + bias - 2 beta (y - wanted).

    ``fold`` adds patches up where they overlap.  With patches z W_dec, t = y - dE/dy of E, nudged towards ``wanted``
    (equations 1, 5 and 15).  For implementations see ``projected_step``.

    Args:
        y, wanted: blocks, (B, S, S, C).
        patches: (B, n^2, k^2 C); rows may lie apart.
        bias: (C,).
        beta: (B,), with ``wanted`` or not at all.
        out: where to write y', which may be y itself.
    """
    IMAGE_SHAPES.check(y, patches, bias, wanted, beta)
    reach, side = reach_and_side(patches, y)
    if patches.shape[1:] != (side**2, reach**2 * y.shape[3]) or side + reach - 1 != y.shape[1]:
        raise ValueError(f"patches must be (B, n^2, k^2 C) of (n + k - 1)^2 blocks, got {tuple(patches.shape)}")
    if (wanted is None) != (beta is None):
        raise ValueError("wanted and beta go together")
    given = [y, patches, bias, *(tensor for tensor in (wanted, beta) if tensor is not None)]
    step = choose("image_step", IMAGE_WAYS, implementation, given, width=y.shape[-1])
    return step(y, patches, bias, float(step_size), wanted, beta, out=out)


def _fused(name: str) -> Step:
    def step(*given: Any, out: Tensor | None) -> Tensor:
        from paper_repro.kernels.projected_step import triton

        found: Tensor = getattr(triton, name)(*given, out=out)
        return found

    return step


WAYS: tuple[Way[Step], ...] = (
    triton_way(_fused("projected_step"), order=0, widest=LONGEST_ROW),
    Way("reference", common.projected_step),
)
IMAGE_WAYS: tuple[Way[Step], ...] = (
    triton_way(_fused("image_step"), order=0, widest=LONGEST_ROW),
    Way("reference", common.image_step),
)
