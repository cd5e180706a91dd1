"""The residual step of nGPT (arXiv 2410.01131): from a state towards a branch's output on the unit sphere."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from paper_repro.kernels.dispatch import Shapes, Way, choose, triton_way
from paper_repro.models import common

LONGEST_ROW = 8192
"""The fused kernel holds whole rows in registers."""
SHAPES = Shapes(h="... D", f="... D", alpha="D|1")


def sphere_step(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool = True, implementation: str = "auto") -> Tensor:
    """Compute unit(h + a (unit(f) - h)), a = |alpha|, or alpha if not ``absolute`` (nGPT, equations 10 and 11; A.2).

    unit(x) = x / |x| without an epsilon: a row of zeros gives NaN.  Computed in float32 (float64 where an input is).
    "fused" (Triton) has first derivatives in reverse mode only.

    Args:
        h: the state, (..., D).
        f: the branch's output before its normalisation, (..., D).
        alpha: the eigen learning rate, (D,), or (1,): one for all.

    Returns:
        (..., D), in h's dtype.
    """
    SHAPES.check(h, f, alpha)
    step = choose("sphere_step", WAYS, implementation, (h, f, alpha), width=h.shape[-1])
    return step(h, f, alpha.abs() if absolute else alpha)


def _fused(h: Tensor, f: Tensor, rate: Tensor) -> Tensor:
    from paper_repro.kernels.sphere_step import triton

    rows = (x.reshape(-1, x.shape[-1]) for x in (h, f))  # (N, D) each
    found: tuple[Tensor, Tensor] = triton.SphereStep.apply(*rows, rate.expand(h.shape[-1]))
    return found[0].view(h.shape)


WAYS: tuple[Way[Callable[..., Tensor]], ...] = (
    triton_way(_fused, widest=LONGEST_ROW),
    Way("reference", partial(common.sphere_step, absolute=False)),
)
