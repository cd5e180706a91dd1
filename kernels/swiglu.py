"""SwiGLU of EBT's trunk, for losses that contain a gradient: its second derivatives by hand.

nGPT's, with scales and with the gate in the second half, is ``kernels.scaled_swiglu``.  With the logistic function
q = 1 / (1 + exp(-g)), f = g q, f' = q + f (1 - q), f'' = q (1 - q) (2 + g (1 - 2 q)) and G the gradient of y = f u,

    dg = G u f',   du = G f

Let a and b be their cotangents.  The derivatives of a dg + b du are

    by G: a u f' + b f     by g: G (a u f'' + b f')     by u: G a f'

Legend: M hidden width.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.dispatch import Way, choose, closed_form_way
from paper_repro.kernels.first_order import SecondOrder, WithGradient
from paper_repro.models import common


class SwiGLUCurvature(SecondOrder):
    """Maps [a, b] (..., 2M), G (..., M) and [g, u] (..., 2M) to the derivatives by G and [g, u] that are needed."""

    @staticmethod
    def forward(
        cotangents: Tensor, G: Tensor, pre: Tensor, needs: tuple[bool, ...]
    ) -> tuple[Tensor | None, Tensor | None]:
        (a, b), (gate, up) = cotangents.chunk(2, -1), pre.chunk(2, -1)  # (..., M) each
        q = torch.sigmoid(gate)
        f, rest = gate * q, 1 - q
        slope, au = torch.addcmul(q, f, rest), a * up  # f', a u
        by_G = (au * slope).addcmul_(b, f) if needs[0] else None  # (..., M)
        if not needs[1]:
            return by_G, None
        by_pre = torch.empty_like(pre)  # (..., 2M)
        by_gate, by_up = by_pre.chunk(2, -1)  # (..., M) each
        torch.mul(a, slope, out=by_up).mul_(G)
        bend = torch.addcmul(gate, gate, q, value=-2, out=f).add_(2).mul_(q).mul_(rest)  # f''
        torch.mul(au, bend, out=by_gate).addcmul_(b, slope).mul_(G)
        return by_G, by_pre


class SwiGLUGradient(WithGradient, SecondOrder):
    """Maps G (..., M) and [g, u] (..., 2M) to [dg, du] (..., 2M)."""

    gradient, selective = SwiGLUCurvature, True

    @staticmethod
    def forward(G: Tensor, pre: Tensor) -> tuple[Tensor]:
        gate, up = pre.chunk(2, -1)  # (..., M) each
        found = torch.empty_like(pre)  # (..., 2M)
        dgate, dup = found.chunk(2, -1)  # (..., M) each
        q = torch.sigmoid(gate)
        torch.mul(gate, q, out=dup)  # f
        torch.addcmul(q, dup, 1 - q, out=dgate)  # f'
        dgate.mul_(up).mul_(G)
        dup.mul_(G)
        return (found,)


class SwiGLU(WithGradient, SecondOrder):
    """Maps [g, u] (..., 2M) to y (..., M)."""

    gradient = SwiGLUGradient

    @staticmethod
    def forward(pre: Tensor) -> Tensor:
        gate, up = pre.chunk(2, -1)  # (..., M) each
        return functional.silu(gate).mul_(up)


def swiglu(pre: Tensor, implementation: str = "auto") -> Tensor:
    """Compute SiLU(g) * u, (..., M), of pre = [g, u], (..., 2M) (Shazeer, arXiv 2002.05202).

    "closed_form" has first and second derivatives in reverse mode; for them it keeps its input alone.
    """
    if pre.ndim == 0 or pre.shape[-1] % 2:
        raise ValueError(f"the shape must be (..., 2M), got {tuple(pre.shape)}")
    return choose("swiglu", WAYS, implementation, (pre,))(pre)


WAYS: tuple[Way[Callable[..., Tensor]], ...] = (
    closed_form_way(SwiGLU.apply, order=2, auto_order=2),
    Way("reference", common.swiglu),
)
