"""One attention, and S inner steps of it as one op, whose backward pass computes again all but x_t and lse_t.

Both take the class that attends: ``closed_form.Attention`` or ``fused.Attention``.  With G the gradient of x_{t+1},
eta the step size, W the matrix that reads and O the one that writes, one step backwards is

    do = eta G O^T,   (o, dq, dS-part of du) by the attention,   dO += eta o^T G,   dW += dq^T u,
    du += dq W,   G <- G + (du through the norm)

Legend: B sequences, T tokens, D width, H heads, Y head width, S inner steps.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.kernels.tied_attention.reference import Positions, wide


class Attention(Protocol):
    """Keys and context that stay while queries change; see ``closed_form.Attention``."""

    def __init__(self, keys: Tensor, context: Tensor | None, positions: Positions, tau: float) -> None: ...

    def forward(self, query: Tensor, state: Tensor | None, lse: Tensor) -> Tensor: ...

    def backward(
        self, direction: Tensor, query: Tensor, state: Tensor | None, lse: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]: ...

    def gradients(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]: ...


class TiedAttentionGradient(FirstOrder):
    """The gradients of all tensors, given that of o, the tensors, o and lse."""

    @staticmethod
    def forward(
        gradient: Tensor,
        query: Tensor,
        keys: Tensor,
        state: Tensor | None,
        context: Tensor | None,
        slopes: Tensor,
        bias_self: Tensor,
        bias_cross: Tensor,
        out: Tensor,
        lse: Tensor,
        tau: float,
        way: type[Attention],
    ) -> tuple[Tensor | None, ...]:
        attention = way(keys, context, Positions(slopes, bias_self, bias_cross), tau)
        _, dquery, dstate = attention.backward(gradient, query, state, lse, out)
        dkeys, dcontext, *dbiases = attention.gradients()
        dshared = _like(dstate, state), _like(dcontext, context)
        return _like(dquery, query), _like(dkeys, keys), *dshared, None, *_each(dbiases, bias_self, bias_cross)


class TiedAttention(WithGradient):
    """o (B, T, H, Y); and lse (B, T, H)."""

    gradient = TiedAttentionGradient

    @staticmethod
    def forward(
        query: Tensor,
        keys: Tensor,
        state: Tensor | None,
        context: Tensor | None,
        slopes: Tensor,
        bias_self: Tensor,
        bias_cross: Tensor,
        tau: float,
        way: type[Attention],
    ) -> tuple[Tensor, Tensor]:
        lse = query.new_empty(query.shape[:-1], dtype=wide(query))  # (B, T, H)
        attention = way(keys, context, Positions(slopes, bias_self, bias_cross), tau)
        return attention.forward(query, state, lse), lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        WithGradient.setup_context(ctx, inputs, output)
        ctx.save_for_backward(*inputs[:7], *output)


class DescentGradient(FirstOrder):
    """The gradients of all tensors, given that of x_S, the tensors, x_1 ... x_{S-1} and lse_0 ... lse_{S-1}."""

    @staticmethod
    def forward(
        gradient: Tensor,
        x: Tensor,
        keys: Tensor,
        reading: Tensor,
        writing: Tensor,
        context: Tensor | None,
        norm_weight: Tensor | None,
        slopes: Tensor,
        bias_self: Tensor,
        bias_cross: Tensor,
        states: Tensor,
        lse: Tensor,
        num_steps: int,
        step_size: float,
        tau: float,
        norm_eps: float,
        way: type[Attention],
    ) -> tuple[Tensor | None, ...]:
        dtype = keys.dtype
        attention = way(keys, context, Positions(slopes, bias_self, bias_cross), tau)
        dreading, dwriting = (value.new_zeros(value.shape, dtype=wide(value)) for value in (reading, writing))
        dnorm = None if norm_weight is None else torch.zeros_like(norm_weight)
        for step in reversed(range(num_steps)):
            with torch.enable_grad():
                before = states[step - 1] if step else x
                leaves = [value.detach().requires_grad_() for value in (before, norm_weight) if value is not None]
                u = _normed(*leaves, eps=norm_eps)
            at = u.detach().to(dtype)
            G = (gradient * step_size).to(dtype)
            query = functional.linear(at, reading).view(keys.shape)  # (B, T, H, Y)
            direction = functional.linear(G, writing).view(keys.shape)  # (B, T, H, Y)
            out, dquery, dstate = attention.backward(direction, query, None if context is None else at, lse[step])
            dwriting += _summed(out.flatten(2), G)  # (H Y, D)
            dreading += _summed(dquery.flatten(2), at)  # (H Y, D)
            du = dquery.flatten(2) @ reading  # (B, T, D)
            if dstate is not None:
                du += dstate
            if norm_weight is None or dnorm is None:
                gradient = gradient + du
            else:
                dx, dweight = torch.autograd.grad(u, leaves, du.to(u.dtype))
                gradient = gradient + dx
                dnorm += dweight
        dkeys, dcontext, *dbiases = attention.gradients()
        dmatrices = dreading.to(reading.dtype), dwriting.to(writing.dtype)
        dbiases = _each(dbiases, bias_self, bias_cross)
        return _like(gradient, x), _like(dkeys, keys), *dmatrices, _like(dcontext, context), dnorm, None, *dbiases


class Descent(WithGradient):
    """x_S (B, T, D); x_1 ... x_{S-1}, (S-1, B, T, D); lse_0 ... lse_{S-1}, (S, B, T, H).

    x has a dtype of its own, keys, matrices and context share one.
    """

    gradient = DescentGradient

    @staticmethod
    def forward(
        x: Tensor,
        keys: Tensor,
        reading: Tensor,
        writing: Tensor,
        context: Tensor | None,
        norm_weight: Tensor | None,
        slopes: Tensor,
        bias_self: Tensor,
        bias_cross: Tensor,
        num_steps: int,
        step_size: float,
        tau: float,
        norm_eps: float,
        way: type[Attention],
    ) -> tuple[Tensor, Tensor, Tensor]:
        attention = way(keys, context, Positions(slopes, bias_self, bias_cross), tau)
        out, states = torch.empty_like(x), x.new_empty(num_steps - 1, *x.shape)
        lse = keys.new_empty(num_steps, *keys.shape[:-1], dtype=wide(keys))  # (S, B, T, H)
        for into, normaliser in zip((*states, out), lse, strict=True):
            u = (x if norm_weight is None else _normed(x, norm_weight, eps=norm_eps)).to(keys.dtype)
            query = functional.linear(u, reading).view(keys.shape)  # (B, T, H, Y)
            read = attention.forward(query, None if context is None else u, normaliser)
            torch.add(x, read.flatten(2) @ writing, alpha=step_size, out=into)
            x = into
        return out, states, lse


def _normed(x: Tensor, weight: Tensor | None = None, *, eps: float) -> Tensor:
    """Return RMSNorm(x) * weight, or x itself without one."""
    return x if weight is None else functional.rms_norm(x, x.shape[-1:], weight, eps)


def _summed(one: Tensor, two: Tensor) -> Tensor:
    """Return the outer products of (B, T, M) and (B, T, N), over all tokens: (M, N)."""
    return one.flatten(0, 1).mT @ two.flatten(0, 1)


def _like(gradient: Tensor | None, tensor: Tensor | None) -> Tensor | None:
    return None if gradient is None or tensor is None else gradient.to(tensor.dtype)


def _each(gradients: list[Tensor], *tensors: Tensor) -> list[Tensor]:
    return [gradient.to(tensor.dtype) for gradient, tensor in zip(gradients, tensors, strict=True)]
