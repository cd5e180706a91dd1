"""CEM's attention ("Recasting Transformer layers as energy models"): its values are its keys, its context stays.

Legend: B sequences, T tokens, D width, H heads, Y head width, S inner steps.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import Way, choose, closed_form_way, triton_way, under_autocast
from paper_repro.kernels.tied_attention import closed_form, reference
from paper_repro.kernels.tied_attention.descent import Attention, Descent, TiedAttention
from paper_repro.kernels.tied_attention.reference import Positions

LEAST_SCORES = 1 << 19
"""B H T^2 S, from which on "auto" takes the closed form on a CPU: below, its calls take longer than what they save."""
WIDEST = 256
"""The fused kernel holds whole rows of heads in registers."""


def tied_attention(
    query: Tensor,
    keys: Tensor,
    state: Tensor | None = None,
    context: Tensor | None = None,
    *,
    tau: float,
    slopes: Tensor | None = None,
    bias_self: Tensor | None = None,
    bias_cross: Tensor | None = None,
    implementation: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute o_ik = sum_j a_ijk k_jk and lse_ik = log sum_j exp(s_ijk), over j <= i, with a = softmax_j(s) and

        s_ijk = (k_jk . q_ik + (h_j d) . u_i) / tau - slope_k (i - j) + (bias_self where i = j, else bias_cross)

    (CEM, equations 1 and 12, appendix B and Algorithm 1; the diagonal d is in the scores alone).  The energy of a token
    is -tau sum_k lse_ik.  Deviation: the paper adds + m_k |i - j|; a penalty is meant.

    "reference" is the definition, which autograd differentiates to any order and which holds all H T^2 scores; "fused"
    (Triton) and "closed_form" (PyTorch, some rows of scores at a time) have first derivatives of o in reverse mode
    only, and none of lse, which is marked so; "auto" takes the kernel on CUDA, the closed form on a CPU where gradients
    are asked for in one dtype outside autocast, torch.func and torch.compile and scores are many (``LEAST_SCORES``),
    else, and where second derivatives may be asked for, the definition.

    Args:
        query, keys: q and k, (B, T, H, Y).
        state, context: u and h d, (B, T, D); both or neither.
        tau: the temperature, above 0.
        slopes: (H,), constants; 0 if None.
        bias_self, bias_cross: (), 0 if None.

    Returns:
        o (B, T, H, Y) in the keys' dtype and lse (B, T, H) in float32 (float64 where an input is).

    Raises:
        ValueError: shapes that do not fit, slopes that ask for a gradient, a temperature that is not positive, an
            unknown implementation, or one that is not possible.
        NotImplementedError: a second or forward-mode derivative through the kernel or the closed form.
    """
    fitting = query.ndim == 4 and query.shape == keys.shape and (state is None) == (context is None)
    if not fitting or (state is not None and not _fits(state, context, query)):
        raise ValueError(
            "shapes must be query and keys (B, T, H, Y), and both or neither of state and context (B, T, D); got "
            + _shapes(query, keys, state, context)
        )
    positions = _positions(keys, tau, slopes, bias_self, bias_cross)
    given = [value for value in (query, keys, state, context) if value is not None]
    attention = _attention("tied_attention", implementation, keys, 1, (*given, *positions))
    if attention is None:
        return reference.tied_attention(query, keys, state, context, positions, tau)
    found: tuple[Tensor, Tensor] = TiedAttention.apply(query, keys, state, context, *positions, float(tau), attention)
    return found


def descend(
    x: Tensor,
    keys: Tensor,
    reading: Tensor,
    writing: Tensor,
    context: Tensor | None = None,
    norm_weight: Tensor | None = None,
    *,
    num_steps: int,
    step_size: float = 1.0,
    tau: float,
    norm_eps: float = 1e-6,
    slopes: Tensor | None = None,
    bias_self: Tensor | None = None,
    bias_cross: Tensor | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Repeat ``num_steps`` times x <- x + step_size * o writing (CEM, equations 14 and 16, Algorithm 1), where

        u = RMSNorm(x) * norm_weight (x itself without one),   q = u reading^T,   o of ``tied_attention`` at u

    and keys and context stay.  ``writing`` holds W^Q_k P_k of all heads, ``reading`` W^Q_k: the same tensor where
    P is the identity.  Gradients reach everything but ``slopes``.

    "fused" and "closed_form" are one op, which keeps x_t and lse_t of each inner step and computes the rest again on
    the way back; see ``tied_attention`` for what they can and for "auto".  Under CUDA's autocast the fused op attends
    in autocast's dtype; x keeps its own.

    Args:
        x: x_0, (B, T, D).
        keys: (B, T, H, Y).
        reading, writing: (H Y, D).
        context: h d, (B, T, D).
        norm_weight: (D,).

    Returns:
        x_S, (B, T, D).

    Raises:
        ValueError, NotImplementedError: as ``tied_attention``; also for ``num_steps`` below 1.
    """
    _check_descent(x, keys, reading, writing, context, norm_weight, num_steps, step_size, norm_eps)
    positions = _positions(keys, tau, slopes, bias_self, bias_cross)
    given = [value for value in (x, keys, reading, writing, context, norm_weight) if value is not None]
    attention = _attention("tied_attention.descend", implementation, keys, num_steps, (*given, *positions))
    if attention is None:
        return reference.descend(
            x, keys, reading, writing, context, norm_weight, positions, num_steps, step_size, tau, norm_eps
        )
    dtype = torch.get_autocast_dtype(x.device.type) if under_autocast(x) else keys.dtype
    keys, reading, writing = (value.to(dtype) for value in (keys, reading, writing))
    context = None if context is None else context.to(dtype)  # (B, T, D)
    options = num_steps, float(step_size), float(tau), float(norm_eps), attention
    out, _, _ = Descent.apply(x, keys, reading, writing, context, norm_weight, *positions, *options)
    found: Tensor = out  # (B, T, D)
    return found


def _attention(
    op: str, implementation: str, keys: Tensor, num_steps: int, given: tuple[Tensor, ...]
) -> type[Attention] | None:
    """Return the class that attends; None for the definition."""
    sequences, tokens, heads, width = keys.shape  # (B, T, H, Y)
    large = sequences * heads * tokens**2 * num_steps >= LEAST_SCORES
    return choose(op, WAYS, implementation, given, width=width, large=large)()


def _fused() -> type[Attention]:
    from paper_repro.kernels.tied_attention import fused

    return fused.Attention


def _closed_form() -> type[Attention]:
    return closed_form.Attention


def _definition() -> None:
    return None


WAYS: tuple[Way[Callable[[], type[Attention] | None]], ...] = (
    triton_way(_fused, widest=WIDEST),
    closed_form_way(_closed_form, order=1, transforms=False, auto_on=("cpu",), auto_order=1, auto_large=True),
    Way("reference", _definition),
)


def _positions(
    keys: Tensor, tau: float, slopes: Tensor | None, bias_self: Tensor | None, bias_cross: Tensor | None
) -> Positions:
    if not (math.isfinite(tau) and tau > 0):
        raise ValueError(f"tau must be finite and above 0, got {tau!r}")
    dtype = reference.wide(keys)
    zero = torch.zeros((), dtype=dtype, device=keys.device)
    heads = keys.shape[2]
    slopes = zero.expand(heads) if slopes is None else slopes  # (H,)
    bias_self = zero if bias_self is None else bias_self
    bias_cross = zero if bias_cross is None else bias_cross
    if slopes.shape != (heads,) or bias_self.ndim or bias_cross.ndim:
        found = _shapes(slopes, bias_self, bias_cross)
        raise ValueError(f"shapes must be slopes (H,) = ({heads},), bias_self () and bias_cross (); got {found}")
    if slopes.requires_grad:
        raise ValueError("slopes are constants, but these ask for a gradient: give slopes.detach()")
    return Positions(slopes, bias_self, bias_cross)


def _check_descent(
    x: Tensor,
    keys: Tensor,
    reading: Tensor,
    writing: Tensor,
    context: Tensor | None,
    norm_weight: Tensor | None,
    num_steps: int,
    step_size: float,
    norm_eps: float,
) -> None:
    if not isinstance(num_steps, int) or num_steps < 1:
        raise ValueError(f"num_steps must be a whole number of at least 1, got {num_steps!r}")
    if not math.isfinite(step_size):
        raise ValueError(f"step_size must be finite, got {step_size!r}")
    if not (math.isfinite(norm_eps) and norm_eps >= 0):
        raise ValueError(f"norm_eps must be finite and not below 0, got {norm_eps!r}")
    fitting = (
        x.ndim == 3
        and keys.ndim == 4
        and keys.shape[:2] == x.shape[:2]
        and reading.shape == writing.shape == (keys.shape[2] * keys.shape[3], x.shape[2])
        and (context is None or context.shape == x.shape)
        and (norm_weight is None or norm_weight.shape == x.shape[2:])
    )
    if not fitting:
        raise ValueError(
            "shapes must be x (B, T, D), keys (B, T, H, Y), reading and writing (H Y, D), context (B, T, D) or None, "
            f"norm_weight (D,) or None; got {_shapes(x, keys, reading, writing, context, norm_weight)}"
        )


def _fits(state: Tensor, context: Tensor | None, query: Tensor) -> bool:
    return (
        context is not None and state.ndim == 3 and state.shape == context.shape and state.shape[:2] == query.shape[:2]
    )


def _shapes(*tensors: Tensor | None) -> str:
    return ", ".join("None" if tensor is None else str(tuple(tensor.shape)) for tensor in tensors)
