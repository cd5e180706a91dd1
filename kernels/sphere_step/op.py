"""The residual step of nGPT (arXiv 2410.01131): from a state towards a branch's output on the unit sphere.

With u = f / |f|, z = h + a (u - h), y = z / |z| and G the gradient of y,

    dz = (G - y (y . G)) / |z|,   dh = (1 - a) dz,   du = a dz,   df = (du - u (u . du)) / |f|,   da = sum dz (u - h)

where the sum goes over rows.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import ANY_FLOATS, Shapes, Way, choose, closed_form_way, triton_way
from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.models import common
from paper_repro.models.common import wide

PIECE = 1 << 16
"""Entries of a piece per thread: a float32 buffer of that size is 256 kB."""


class SphereStepGradient(FirstOrder):
    """The gradients of h, f and the rate, given G (N, D), h, f, the rate and the norms."""

    @staticmethod
    def forward(gradient: Tensor, h: Tensor, f: Tensor, rate: Tensor, norms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dtype = norms.dtype
        a = rate.to(dtype)
        kept = 1 - a
        dh, df, da = torch.empty_like(h), torch.empty_like(f), norms.new_zeros(h.shape[1])
        for G, state, branch, into_h, into_f, f_norm, z_norm in _pieces(gradient, h, f, dh, df, *norms):
            u, start = branch.to(dtype) / f_norm, state.to(dtype)
            z = torch.lerp(start, u, a)  # (rows, D)
            along = (z * G).sum(-1, keepdim=True).div_(z_norm.square())
            dz = torch.addcmul(G.to(dtype), z, along, value=-1, out=z).div_(z_norm)
            torch.mul(dz, kept, out=into_h)
            da += torch.sub(u, start).mul_(dz).sum(0)  # (D,)
            du = dz.mul_(a)
            along = (u * du).sum(-1, keepdim=True)  # (rows, 1)
            torch.div(du.addcmul_(u, along, value=-1), f_norm, out=into_f)
        return dh, df, da.sum_to_size(rate.shape).to(rate.dtype)


class SphereStep(WithGradient):
    """Maps h (N, D), f (N, D) and the rate a, (D,) or (1,), to the step (N, D), and |f| and |z|, (2, N, 1)."""

    gradient = SphereStepGradient

    @staticmethod
    def forward(h: Tensor, f: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        dtype = wide(h, f, rate)
        a = rate.to(dtype)
        out, norms = torch.empty_like(h), h.new_empty(2, len(h), 1, dtype=dtype)
        for state, branch, into, f_norm, z_norm in _pieces(h, f, out, *norms):
            torch.linalg.vector_norm(branch, dim=-1, keepdim=True, dtype=dtype, out=f_norm)
            z = branch.to(dtype) / f_norm
            torch.lerp(state.to(dtype), z, a, out=z)
            torch.linalg.vector_norm(z, dim=-1, keepdim=True, out=z_norm)
            torch.div(z, z_norm, out=into)
        return out, norms


def _pieces(*by_row: Tensor) -> Iterator[tuple[Tensor, ...]]:
    rows = max(1, PIECE * torch.get_num_threads() // by_row[0].shape[-1])
    return zip(*(tensor.split(rows) for tensor in by_row), strict=True)


LONGEST_ROW = 8192
"""The fused kernel holds whole rows in registers."""
SHAPES = Shapes(h="... D", f="... D", alpha="D|1")


def sphere_step(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool = True, implementation: str = "auto") -> Tensor:
    """Compute unit(h + a (unit(f) - h)), a = |alpha|, or alpha if not ``absolute`` (nGPT, equations 10 and 11; A.2).

    unit(x) = x / |x| without an epsilon: a row of zeros gives NaN.  Computed in float32 (float64 where an input is).
    "fused" (Triton) and "closed_form" have first derivatives in reverse mode only.

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

    return _by_rows(triton.SphereStep, h, f, rate.expand(h.shape[-1]))


def _by_rows(function: type[WithGradient], h: Tensor, f: Tensor, rate: Tensor) -> Tensor:
    out, _ = function.apply(*(x.reshape(-1, x.shape[-1]) for x in (h, f)), rate)  # (N, D) each
    return out.view(h.shape)


WAYS: tuple[Way[Callable[..., Tensor]], ...] = (
    triton_way(_fused, widest=LONGEST_ROW),
    closed_form_way(partial(_by_rows, SphereStep), order=1, **ANY_FLOATS, auto_on=("cpu",), auto_order=1),
    Way("reference", partial(common.sphere_step, absolute=False)),
)
