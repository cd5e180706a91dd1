"""S inner steps of the CEM MLP with no norm inside the loop and the preconditioner folded into the writing matrix.

E models, N tokens, D width, M hidden width; weights (E, M, D).  With z = reading x, a = act(z), r = gamma * a and g the
gradient of x_{t+1}, one step backwards is

    q = writing g,      dgamma += step_size * q * a,      dz = q * gamma * act'(z),
    dwriting += step_size * r^T g,      dreading += step_size * dz^T x_t,      g <- g + step_size * reading^T dz

The forward pass keeps x_t and z; the rest is computed again while it is in the cache, which costs no more time than
reading it back.  For SiLU with s = sigmoid(z), gamma * act'(z) = r + s (gamma - r).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import Way, choose, closed_form_way, device_type
from paper_repro.kernels.first_order import Stackable, WithGradient
from paper_repro.models.common import ACTIVATIONS, descend_mlp

SMALL = 1 << 14
"""One thread takes models whose (N, M) arrays have at least so many entries one by one, all S steps in the cache.

Below that, with more threads and on other devices, the stack is computed as one: there that took less time.
"""


def _silu_response(z: Tensor, a: Tensor, s: Tensor) -> None:
    torch.mul(z, torch.sigmoid(z, out=s), out=a)


def _silu_slope(z: Tensor, gamma: Tensor, r: Tensor, s: Tensor) -> Tensor:
    return torch.lerp(r, gamma, s, out=s)


def _gelu_response(z: Tensor, a: Tensor, s: Tensor) -> None:
    torch.ops.aten.gelu.out(z, out=a)


def _gelu_slope(z: Tensor, gamma: Tensor, r: Tensor, s: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward.grad_input(gamma, z, grad_input=s)


DERIVATIVES = {"silu": (_silu_response, _silu_slope), "gelu": (_gelu_response, _gelu_slope)}
"""For each activation: put a = act(z) into ``a`` (and what is needed later into ``s``); gamma * act'(z), in ``s``."""


class DescentGradient(Stackable):
    """The gradients of x (E, N, D), gamma (E, N, M), reading and (unless it is None) writing (E, M, D)."""

    arguments_by_step = (5, 6)  # the states and z

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        gradient, x, gamma, reading, writing, states, z_all, _, step_size, activation = given
        matmul, add_matmul, parts = _layout(gamma)
        response, slope = DERIVATIVES[activation]
        tied = writing is None
        writing = reading if writing is None else writing
        dx, dgamma, dreading = torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(reading)
        dwriting = dreading if tied else torch.empty_like(writing)
        tensors = (gradient, gamma, reading, writing.mT, dx, dgamma, dreading, dwriting)
        steps = zip(_by_model(parts, (x, *states)), _by_model(parts, z_all), strict=True)
        q, a, s = (torch.empty_like(parts(gamma)[0]) for _ in range(3))
        for part, (xs, zs) in zip(zip(*map(parts, tensors), strict=True), steps, strict=True):
            g, context, read, writing_t, into, dcontext, dread, dwrite = part
            keep = 0
            for state, z in zip(reversed(xs), reversed(zs), strict=True):
                matmul(g, writing_t, out=q)  # (N, M)
                response(z, a, s)
                if keep:
                    dcontext.addcmul_(q, a)
                else:
                    torch.mul(q, a, out=dcontext)
                r = a.mul_(context)
                add_matmul(dwrite, r.mT, g, beta=keep, alpha=step_size, out=dwrite)
                dz = q.mul_(slope(z, context, r, s))  # (N, M)
                add_matmul(dread, dz.mT, state, beta=1 if tied else keep, alpha=step_size, out=dread)
                g = add_matmul(g, dz, read, alpha=step_size, out=into)
                keep = 1
        if step_size != 1:
            dgamma.mul_(step_size)
        return (dx, dgamma, dreading) if tied else (dx, dgamma, dreading, dwriting)


class Descent(Stackable, WithGradient):
    """x_S (E, N, D), and what the backward pass needs: x_1 ... x_{S-1} and z, each with S in front.

    ``writing`` is None when it is ``reading`` itself; the gradients of both uses then go to ``reading``.
    """

    gradient = DescentGradient
    results_by_step = (1, 2)

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, gamma, reading, writing, num_steps, step_size, activation = given
        matmul, add_matmul, parts = _layout(gamma)
        out, states = torch.empty_like(x), x.new_empty(num_steps - 1, *x.shape)  # (E, N, D), (S - 1, E, N, D)
        z_all = x.new_empty(num_steps, *gamma.shape)  # (S, E, N, M)
        act = getattr(torch.ops.aten, activation).out
        models = zip(*map(parts, (x, gamma, reading.mT, reading if writing is None else writing)), strict=True)
        steps = zip(_by_model(parts, (*states, out)), _by_model(parts, z_all), strict=True)
        r = torch.empty_like(parts(gamma)[0])  # (N, M), or (E, N, M) of the stack
        for (state, context, read_t, write), (next_states, zs) in zip(models, steps, strict=True):
            for next_state, z in zip(next_states, zs, strict=True):
                matmul(state, read_t, out=z)  # (N, M)
                act(z, out=r)
                add_matmul(state, r.mul_(context), write, alpha=step_size, out=next_state)  # (N, D)
                state = next_state  # noqa: PLW2901
        return out, states, z_all


def _layout(
    gamma: Tensor,
) -> tuple[Callable[..., Tensor], Callable[..., Tensor], Callable[[Tensor], tuple[Tensor, ...]]]:
    """Return matmul, add_matmul and how a stack is cut: into models, or not at all (see SMALL)."""
    if device_type(gamma) == "cpu" and torch.get_num_threads() == 1 and gamma[0].numel() >= SMALL:
        return torch.mm, torch.addmm, torch.unbind
    return torch.bmm, torch.baddbmm, lambda stack: (stack,)


def _by_model(parts: Callable[[Tensor], tuple[Tensor, ...]], steps: Iterable[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Return, for each part of the stack, its tensors of all steps in order."""
    return zip(*map(parts, steps), strict=True)


def descend(
    x: Tensor,
    gamma: Tensor,
    reading: Tensor,
    writing: Tensor,
    *,
    num_steps: int,
    step_size: float = 1.0,
    activation: str = "silu",
    implementation: str = "auto",
) -> Tensor:
    """Repeat ``num_steps`` times x <- x + step_size * writing^T (gamma * act(reading x)) (CEM, equations 15 and 17).

    ``reading`` is V and ``writing`` is V P: the same tensor when P is the identity.  "closed_form" has first
    derivatives in reverse mode only, also under ``torch.func.vmap`` and ``grad``; "auto" takes it from two steps on.

    Args:
        x: (*E, ..., D), where *E are the leading dimensions of the weights: a stack of models, or none.
        gamma: (*E, ..., M), with the dimensions of ``x`` but for the last.
        reading, writing: (*E, M, D).
        activation: "silu" or "gelu" (exact).

    Returns:
        (*E, ..., D).
    """
    if not isinstance(num_steps, int) or num_steps < 1:
        raise ValueError(f"num_steps must be a whole number of at least 1, got {num_steps!r}")
    if not math.isfinite(step_size):
        raise ValueError(f"step_size must be finite, got {step_size!r}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    _check_shapes(x, gamma, reading, writing)
    go = choose("cem_mlp", WAYS, implementation, (x, gamma, reading, writing), large=num_steps > 1)
    return go(x, gamma, reading, writing, num_steps, float(step_size), activation)


def _closed_form(
    x: Tensor, gamma: Tensor, reading: Tensor, writing: Tensor, num_steps: int, step_size: float, activation: str
) -> Tensor:
    models = math.prod(reading.shape[:-2])  # (S,) models
    tokens = math.prod(x.shape[reading.ndim - 2 : -1])
    out, *_ = Descent.apply(
        x.reshape(models, tokens, x.shape[-1]),  # (E, N, D)
        gamma.reshape(models, tokens, gamma.shape[-1]),  # (E, N, M)
        reading.reshape(models, *reading.shape[-2:]),  # (E, M, D)
        None if writing is reading else writing.reshape(models, *writing.shape[-2:]),
        num_steps,
        step_size,
        activation,
    )
    return out.reshape(x.shape)


WAYS: tuple[Way[Callable[..., Tensor]], ...] = (
    closed_form_way(_closed_form, order=1, dtypes=None, vmap=True, compiler=True, auto_order=1, auto_large=True),
    Way("reference", descend_mlp),
)


def _check_shapes(x: Tensor, gamma: Tensor, reading: Tensor, writing: Tensor) -> None:
    stack = reading.shape[:-2]
    fitting = (
        reading.ndim >= 2
        and writing.shape == reading.shape
        and x.ndim > len(stack)
        and x.shape[:-1] == gamma.shape[:-1]
        and x.shape[: len(stack)] == stack
        and (gamma.shape[-1], x.shape[-1]) == reading.shape[-2:]
    )
    if not fitting:
        found = ", ".join(str(tuple(value.shape)) for value in (x, gamma, reading, writing))
        raise ValueError(
            "shapes must be x (*E, ..., D), gamma (*E, ..., M), reading and writing (*E, M, D) with equal *E, ..., "
            f"D and M; got {found}"
        )
