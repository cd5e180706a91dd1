"""The step and its gradients in plain PyTorch, some rows at a time: a pass then finds in the cache what the last left.

With u = f / |f|, z = h + a (u - h), y = z / |z| and G the gradient of y,

    dz = (G - y (y . G)) / |z|,   dh = (1 - a) dz,   du = a dz,   df = (du - u (u . du)) / |f|,   da = sum dz (u - h)

where the sum goes over rows.  The forward pass keeps h, f and the norms.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.kernels.sphere_step.reference import wide

PIECE = 1 << 16
"""Entries of a piece per thread: a float32 buffer of that size is 256 kB."""


class SphereStepGradient(FirstOrder):
    """The gradients of h, f and alpha, given G (N, D), h, f, alpha and the norms."""

    @staticmethod
    def forward(
        gradient: Tensor, h: Tensor, f: Tensor, alpha: Tensor, norms: Tensor, absolute: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = norms.dtype
        a = _rate(alpha, absolute, dtype)
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
        if absolute:
            da *= alpha.sgn()
        return dh, df, da.sum_to_size(alpha.shape).to(alpha.dtype)


class SphereStep(WithGradient):
    """Maps h (N, D), f (N, D), alpha (D,) or (1,) and ``absolute`` to the step (N, D), and |f| and |z|, (2, N, 1)."""

    gradient = SphereStepGradient

    @staticmethod
    def forward(h: Tensor, f: Tensor, alpha: Tensor, absolute: bool) -> tuple[Tensor, Tensor]:
        dtype = wide(h, f, alpha)
        a = _rate(alpha, absolute, dtype)
        out, norms = torch.empty_like(h), h.new_empty(2, len(h), 1, dtype=dtype)
        for state, branch, into, f_norm, z_norm in _pieces(h, f, out, *norms):
            torch.linalg.vector_norm(branch, dim=-1, keepdim=True, dtype=dtype, out=f_norm)
            z = branch.to(dtype) / f_norm
            torch.lerp(state.to(dtype), z, a, out=z)
            torch.linalg.vector_norm(z, dim=-1, keepdim=True, out=z_norm)
            torch.div(z, z_norm, out=into)
        return out, norms


def _rate(alpha: Tensor, absolute: bool, dtype: torch.dtype) -> Tensor:
    return (alpha.abs() if absolute else alpha).to(dtype)


def _pieces(*by_row: Tensor) -> Iterator[tuple[Tensor, ...]]:
    rows = max(1, PIECE * torch.get_num_threads() // by_row[0].shape[-1])
    return zip(*(tensor.split(rows) for tensor in by_row), strict=True)
