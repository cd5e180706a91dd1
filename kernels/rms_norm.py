"""RMSNorm for losses that contain a gradient: its second derivatives by hand.

With r = 1 / sqrt(mean(x^2) + eps), w the weight, G the gradient of y = r x w, h = G w, s = <h, x> and k = r^2 / D,

    dx = r (h - k s x),   dw = sum r G x

where <., .> goes over a row and the sum over all rows.  Let a and b be the cotangents of dx and dw, t = <a, x>,
u = <a, h> and m = <G b, x>.  The derivatives of <a, dx> + <b, dw> are, with e = r (a - k t x),

    by G: e w + r b x
    by w: sum e G
    by x: r k ((3 k s t - u) x - t h - s a) + r (G b - k m x)

Legend: D width, the last dimension.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import Shapes, Way, choose, closed_form_way
from paper_repro.kernels.first_order import SecondOrder, WithGradient
from paper_repro.models import common


class NormCurvature(SecondOrder):
    """Maps a (..., D) and b (D,), or None, with G, x, w and r, to the derivatives by G, x and w that are needed.

    What r depends on is in the derivative by x.
    """

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        a, b, G, x, weight, r, *_, needs = given
        k = r.square().div_(x.shape[-1])  # (..., 1)
        by_G = by_x = by_weight = None
        if a is not None:
            h = G * weight  # (..., D)
            s, t, u = (torch.linalg.vecdot(*pair).unsqueeze(-1) for pair in ((h, x), (a, x), (a, h)))  # (..., 1) each
            if needs[0] or needs[2]:
                e = torch.addcmul(a, x, -k * t).mul_(r)  # (..., D)
                by_weight = _over_rows(e * G) if needs[2] else None  # (D,)
                by_G = e.mul_(weight) if needs[0] else None  # (..., D)
            if needs[1]:
                rk = r * k
                by_x = h.mul_(-rk * t).addcmul_(a, -rk * s).addcmul_(x, rk * (3 * k * s * t - u))  # (..., D)
        if b is not None:
            if needs[0]:
                by_G = _sum(by_G, (x * b).mul_(r))
            if needs[1]:
                scaled = G * b  # (..., D)
                m = torch.linalg.vecdot(scaled, x).unsqueeze(-1)  # (..., 1)
                by_x = _sum(by_x, scaled.addcmul_(x, -k * m).mul_(r))
        return by_G, by_x, by_weight


class NormGradient(WithGradient, SecondOrder):
    """Maps G, x (..., D), w (D,) and r (..., 1) to dx (..., D) and, if needed, dw (D,)."""

    gradient, num_results, selective = NormCurvature, 2, True

    @staticmethod
    def forward(
        G: Tensor, x: Tensor, weight: Tensor, r: Tensor, eps: float, needs: tuple[bool, ...]
    ) -> tuple[Tensor, Tensor | None]:
        h = G * weight  # (..., D)
        minus_ks = torch.linalg.vecdot(h, x).unsqueeze(-1).mul_(r).mul_(r).div_(-x.shape[-1])  # (..., 1)
        dx = torch.addcmul(h, x, minus_ks, out=h).mul_(r)
        return dx, _over_rows((G * x).mul_(r)) if needs[1] else None


class Norm(WithGradient, SecondOrder):
    """Maps x (..., D), w (D,) and eps to y (..., D) and r (..., 1)."""

    gradient, selective = NormGradient, True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        r = torch.linalg.vecdot(x, x).unsqueeze(-1).div_(x.shape[-1]).add_(eps).rsqrt_()  # (..., 1)
        return torch.mul(x, r).mul_(weight), r


def _over_rows(by_row: Tensor) -> Tensor:
    return by_row.flatten(0, -2).sum(0) if by_row.ndim > 1 else by_row


def _sum(total: Tensor | None, term: Tensor) -> Tensor:
    return term if total is None else total.add_(term)


def rms_norm(x: Tensor, weight: Tensor, eps: float, implementation: str = "auto") -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv 1910.07467).

    x is (..., D), weight (D,).  "closed_form" has first and second derivatives in reverse mode; for them it keeps its
    inputs and one number for each row.
    """
    SHAPES.check(x, weight)
    return choose("rms_norm", WAYS, implementation, (x, weight))(x, weight, eps)


SHAPES = Shapes(x="... D", weight="D")
WAYS: tuple[Way[Callable[..., Tensor]], ...] = (
    closed_form_way(lambda *given: Norm.apply(*given)[0], order=2, auto_order=2),
    Way("reference", common.rms_norm),
)
