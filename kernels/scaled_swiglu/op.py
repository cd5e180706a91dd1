"""nGPT's feed-forward activation: SwiGLU of scaled pre-activations (nGPT, equations 18, 20 and 21).

Legend: D width, M hidden width.
"""

from collections.abc import Callable

from torch import Tensor

from paper_repro.kernels.dispatch import Shapes, Way, choose, triton_way
from paper_repro.models import common

SHAPES = Shapes(u="... M", nu="... M", scale_u="M|1", scale_nu="M|1")


def scaled_swiglu(
    pre: Tensor, scale_u: Tensor | None = None, scale_nu: Tensor | None = None, implementation: str = "auto"
) -> Tensor:
    """Compute u s_u * silu(nu s_nu) of pre = [u, nu]; nGPT's factor sqrt(D) is part of the scales.

    "fused" (Triton) has first derivatives in reverse mode only and keeps ``pre`` alone for them.

    Args:
        pre: (..., 2M).
        scale_u, scale_nu: (M,) or (1,); None is 1.

    Returns:
        (..., M) in the dtype of ``pre``; computed in float32 at least.
    """
    SHAPES.check(*pre.tensor_split(2, -1), scale_u, scale_nu)
    scales = [scale for scale in (scale_u, scale_nu) if scale is not None]
    return choose("scaled_swiglu", WAYS, implementation, (pre, *scales))(pre, scale_u, scale_nu)


def _fused(pre: Tensor, scale_u: Tensor | None, scale_nu: Tensor | None) -> Tensor:
    from paper_repro.kernels.scaled_swiglu import triton

    half = pre.shape[-1] // 2
    one = pre.new_ones(1)
    full = ((one if scale is None else scale).expand(half) for scale in (scale_u, scale_nu))  # (M,) each
    out: Tensor = triton.ScaledSwiGLU.apply(pre.reshape(-1, 2 * half), *full)  # (N, M)
    return out.reshape(*pre.shape[:-1], half)


WAYS: tuple[Way[Callable[..., Tensor]], ...] = (triton_way(_fused), Way("reference", common.scaled_swiglu))
