"""nGPT's scaled SwiGLU with a backward pass of its own: few passes over pieces that stay in a CPU's cache.

With a = u s_u, x = nu s_nu and G the gradient of a silu(x), per token
    P = G silu(x),  du = P s_u,  and  Q = G a silu'(x),  dnu = Q s_nu;
ds_u and ds_nu are the tokens' sums of P u and Q nu.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.first_order import FirstOrder, WithGradient

PIECE = 1 << 16
"""Entries per thread of a (tokens, M) piece: half a dozen such float32 buffers fit in 2 MB of cache."""


class ScaledSwiGLUGradient(FirstOrder):
    """The gradients of pre, s_u and s_nu, given G (N, M)."""

    @staticmethod
    def forward(
        gradient: Tensor, pre: Tensor, scale_u: Tensor | None, scale_nu: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        dpre = torch.empty_like(pre)
        dscales = [None if scale is None else torch.zeros_like(scale) for scale in (scale_u, scale_nu)]
        for G, piece, into in _pieces(pre.shape[1] // 2, gradient, pre, dpre):
            u, nu = piece.chunk(2, 1)
            du, dnu = into.chunk(2, 1)
            x = nu if scale_nu is None else nu * scale_nu
            a = u if scale_u is None else u * scale_u
            through = torch.ops.aten.silu_backward(G * a, x)
            up = functional.silu(x).mul_(G)
            for grad, value, scale, dscale, to in (
                (up, u, scale_u, dscales[0], du),
                (through, nu, scale_nu, dscales[1], dnu),
            ):
                if scale is None or dscale is None:
                    to.copy_(grad)
                else:
                    torch.mul(grad, scale, out=to)
                    dscale.add_(grad.mul_(value).sum(0))
        return dpre, dscales[0], dscales[1]


class ScaledSwiGLU(WithGradient):
    """pre (N, 2M), s_u and s_nu (M) or None, all of one dtype: (N, M)."""

    gradient = ScaledSwiGLUGradient

    @staticmethod
    def forward(pre: Tensor, scale_u: Tensor | None, scale_nu: Tensor | None) -> Tensor:
        half = pre.shape[1] // 2
        out = pre.new_empty(pre.shape[0], half)
        for piece, into in _pieces(half, pre, out):
            u, nu = piece.chunk(2, 1)
            gate = functional.silu(nu if scale_nu is None else nu * scale_nu)
            torch.mul(u, gate if scale_u is None else gate.mul_(scale_u), out=into)
        return out


def _pieces(half: int, *by_token: Tensor) -> Iterator[tuple[Tensor, ...]]:
    tokens = max(1, PIECE * torch.get_num_threads() // half)
    return zip(*(value.split(tokens) for value in by_token), strict=True)
