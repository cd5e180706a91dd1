"""CEM's attention ("Recasting Transformer layers as energy models"): its values are its keys, its context stays.

Of S inner steps x_t alone is kept: the way back computes each step again before its gradient.

Legend: B sequences, T tokens, D width, H heads, Y head width, S inner steps.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from paper_repro.kernels.dispatch import Shapes, Way, choose, triton_way, under_autocast
from paper_repro.models import common
from paper_repro.models.common import Positions

PLACES = {"slopes": "H", "bias_self": "", "bias_cross": ""}
SHAPES = Shapes(query="B T H Y", keys="B T H Y", state="B T D", context="B T D", **PLACES)
DESCENT_SHAPES = Shapes(
    x="B T D", keys="B T H Y", reading="N D", writing="N D", context="B T D", norm_weight="D", **PLACES
)
WIDEST = 256
"""The fused kernel holds whole rows of heads in registers."""


def tied_attention(
    query: Tensor,
    keys: Tensor,
    state: Tensor | None,
    context: Tensor | None,
    positions: Positions,
    tau: float,
    implementation: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute o_ik = sum_j a_ijk k_jk and lse_ik = log sum_j exp(s_ijk), over j <= i, with a = softmax_j(s) and

        s_ijk = (k_jk . q_ik + (h_j d) . u_i) / tau - slope_k (i - j) + (bias_self where i = j, else bias_cross)

    (CEM, equations 1 and 12, appendix B and Algorithm 1; the diagonal d is in the scores alone).  The energy of a token
    is -tau sum_k lse_ik.  Deviation: the paper adds + m_k |i - j|; a penalty is meant.

    "fused" (Triton) has first derivatives of o in reverse mode only, but by the slopes, and none of lse.

    Args:
        query, keys: q and k, (B, T, H, Y).
        state, context: u and h d, (B, T, D); both or neither.
        tau: the temperature, above 0.

    Returns:
        o (B, T, H, Y) in the keys' dtype and lse (B, T, H) in float32 (float64 where an input is).
    """
    SHAPES.check(query, keys, state, context, *positions)
    given = [value for value in (query, keys, state, context, *positions) if value is not None]
    attend = choose("tied_attention", WAYS, implementation, given, width=keys.shape[3])
    return attend(query, keys, state, context, positions, tau)


def descend(
    x: Tensor,
    keys: Tensor,
    reading: Tensor,
    writing: Tensor,
    context: Tensor | None = None,
    norm_weight: Tensor | None = None,
    positions: Positions | None = None,
    *,
    num_steps: int,
    step_size: float = 1.0,
    tau: float,
    norm_eps: float = 1e-6,
    implementation: str = "auto",
) -> Tensor:
    """Repeat ``num_steps`` times x <- x + step_size * o writing (CEM, equations 14 and 16, Algorithm 1), where

        u = RMSNorm(x) * norm_weight (x itself without one),   q = u reading^T,   o of ``tied_attention`` at u

    and keys and context stay.  ``writing`` holds W^Q_k P_k of all heads, ``reading`` W^Q_k: the same tensor where
    P is the identity.

    "fused" keeps x_t of each inner step and computes the rest again on the way back, see ``tied_attention``.  Under
    CUDA's autocast it attends in autocast's dtype; x keeps its own.

    Args:
        x: x_0, (B, T, D).
        keys: (B, T, H, Y).
        reading, writing: (H Y, D).
        context: h d, (B, T, D).
        norm_weight: (D,).
        positions: None adds nothing to the scores.

    Returns:
        x_S, (B, T, D).
    """
    positions = common.no_positions(keys) if positions is None else positions
    tensors = x, keys, reading, writing, context, norm_weight
    DESCENT_SHAPES.check(*tensors, *positions)
    given = [value for value in (*tensors, *positions) if value is not None]
    attend = choose("tied_attention.descend", WAYS, implementation, given, width=keys.shape[3])
    if attend is common.tied_attention:
        numbers: dict[str, Any] = {"num_steps": num_steps, "step_size": step_size, "tau": tau, "norm_eps": norm_eps}
        return common.descend_attention(*tensors, positions, **numbers)
    dtype = torch.get_autocast_dtype(x.device.type) if under_autocast(x) else keys.dtype
    keys, reading, writing = (value.to(dtype) for value in (keys, reading, writing))
    context = None if context is None else context.to(dtype)  # (B, T, D)

    def step(x: Tensor) -> Tensor:
        u = x if norm_weight is None else functional.rms_norm(x, x.shape[-1:], norm_weight, norm_eps)
        u = u.to(dtype)
        query = functional.linear(u, reading).view(keys.shape)  # (B, T, H, Y)
        out, _ = attend(query, keys, None if context is None else u, context, positions, tau)
        return x + step_size * (out.flatten(2) @ writing)  # (B, T, D)

    for _ in range(num_steps):
        x = checkpoint(step, x, use_reentrant=False, preserve_rng_state=False)
    return x


def _fused(
    query: Tensor, keys: Tensor, state: Tensor | None, context: Tensor | None, positions: Positions, tau: float
) -> tuple[Tensor, Tensor]:
    from paper_repro.kernels.tied_attention.triton import TiedAttention

    state, context = (None if one is None else one.to(keys.dtype) for one in (state, context))
    found: tuple[Tensor, Tensor] = TiedAttention.apply(query.to(keys.dtype), keys, state, context, *positions, tau)
    return found


WAYS: tuple[Way[Callable[..., tuple[Tensor, Tensor]]], ...] = (
    triton_way(_fused, widest=WIDEST),
    Way("reference", common.tied_attention),
)
