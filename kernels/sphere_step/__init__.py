"""The residual step of nGPT (arXiv 2410.01131): from a state towards a branch's output on the unit sphere."""

from torch import Tensor

from paper_repro.kernels.dispatch import Way, choose, triton_way
from paper_repro.kernels.sphere_step import closed_form, reference

LONGEST_ROW = 8192
"""The fused kernel holds whole rows in registers."""


def sphere_step(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool = True, implementation: str = "auto") -> Tensor:
    """Compute unit(h + a (unit(f) - h)) with a = |alpha|, or alpha if not ``absolute`` (nGPT, equations 10 and 11;
    A.2).

    unit(x) = x / |x| over the last dimension without an epsilon: a row of zeros gives NaN.  Computed in float32
    (float64 where an input is).

    "reference" is the definition, which autograd differentiates to any order; "fused" (Triton) and "closed_form" (a CPU
    takes rows that fit in its cache) have first derivatives in reverse mode only; "auto" takes the kernel on CUDA, the
    closed form on a CPU where gradients are asked for outside torch.func and torch.compile, else, and where second
    derivatives may be asked for, the definition.

    Args:
        h: the state, (..., D).
        f: the branch's output before its normalisation, (..., D).
        alpha: the eigen learning rate, (D,), or (1,): one for all.

    Returns:
        (..., D), in h's dtype.

    Raises:
        ValueError: shapes that do not fit, an unknown implementation, or one that is not possible.
        NotImplementedError: a second or forward-mode derivative through the kernel or the closed form.
    """
    _check_shapes(h, f, alpha)
    step = choose("sphere_step", WAYS, implementation, (h, f, alpha), width=h.shape[-1])
    return step(h, f, alpha, absolute)


def riemannian_step(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool = True) -> Tensor:
    """Compute unit(h - a (h (h . u) - u)) with u = unit(f): along the tangent, then back (nGPT, equations 25 and 26).

    Args:
        h, f, alpha, absolute: as for ``sphere_step``; the step is tangential where h has unit norm.

    Returns:
        (..., D), in h's dtype.

    Raises:
        ValueError: shapes that do not fit.
    """
    _check_shapes(h, f, alpha)
    return reference.riemannian_step(h, f, alpha, absolute)


def _fused(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool) -> Tensor:
    from paper_repro.kernels.sphere_step import fused

    out, _ = fused.SphereStep.apply(_rows(h), _rows(f), alpha, absolute)
    return out.view(h.shape)


def _closed_form(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool) -> Tensor:
    out, _ = closed_form.SphereStep.apply(_rows(h), _rows(f), alpha, absolute)
    return out.view(h.shape)


WAYS = (
    triton_way(_fused, widest=LONGEST_ROW),
    Way(
        "closed_form",
        _closed_form,
        order=1,
        transforms=False,
        compiler=False,
        empty=False,
        auto_on=("cpu",),
        auto_order=1,
    ),
    Way("reference", reference.sphere_step),
)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])  # (N, D)


def _check_shapes(h: Tensor, f: Tensor, alpha: Tensor) -> None:
    if h.ndim < 1 or f.shape != h.shape or alpha.shape not in (h.shape[-1:], (1,)):
        found = ", ".join(str(tuple(tensor.shape)) for tensor in (h, f, alpha))
        raise ValueError(f"shapes must be h (..., D), f (..., D) and alpha (D,) or (1,); got {found}")
