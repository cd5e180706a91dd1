"""CET's attention, which is the gradient of an energy: every token is read as a key and as a query.

Legend: B images, K heads, N tokens, R head width.
"""

import math

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from paper_repro.kernels import dispatch
from paper_repro.kernels.energy_attention import in_place, reference

IMPLEMENTATIONS = ("auto", "fused", "in_place", "reference")
WIDEST = 128
"""The fused kernel holds whole rows of heads in registers."""
OP = "energy_attention"


def energy_attention(
    query: Tensor,
    key: Tensor,
    gamma: float,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    implementation: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """P K, P^T Q and lse_n = log sum_m exp(gamma q_n . k_m), with P = softmax(gamma Q K^T) over keys, one's own too.

    With E = -1/gamma sum_kn lse_kn these are -dE/dQ, -dE/dK and the energy (Training a Convergent Energy Transformer
    with Equilibrium Propagation, equations 11 to 14).

    "reference" is the definition, which autograd differentiates to any order; "fused" (Triton; P never leaves the chip)
    and "in_place" (PyTorch, the scores of some images at a time) have no gradient.  "auto" takes the definition where a
    gradient is asked for and within torch.func or torch.compile, else the kernel on CUDA and "in_place" on a CPU.

    Args:
        query, key: (B, K, N, R), of one dtype; rows of R may lie apart.
        gamma: the inverse temperature, above 0.
        out: where to write the first two results instead of new tensors; these may be ``query`` and ``key``
            themselves.  Not where a gradient is asked for.

    Returns:
        P K and P^T Q, (B, K, N, R), in the inputs' dtype, and lse (B, K, N) in float32 (float64 for float64).

    Raises:
        ValueError: shapes or dtypes that do not fit, a gamma that is not positive, an unknown implementation, or one
            that is not possible.
    """
    if query.ndim != 4 or query.shape != key.shape or query.dtype != key.dtype:
        raise ValueError(
            f"query and key must have one shape (B, K, N, R) and one dtype; got {tuple(query.shape)} {query.dtype} and "
            f"{tuple(key.shape)} {key.dtype}"
        )
    if not (math.isfinite(gamma) and gamma > 0):
        raise ValueError(f"gamma must be finite and above 0, got {gamma!r}")
    way = _way(query, key, implementation, out is not None)
    if way == "fused":
        from paper_repro.kernels.energy_attention import fused

        return fused.energy_attention(query, key, float(gamma), out)
    if way == "in_place":
        return in_place.energy_attention(query, key, gamma, out)
    by_query, by_key, lse = reference.energy_attention(query, key, gamma)
    if out is not None:
        by_query, by_key = out[0].copy_(by_query), out[1].copy_(by_key)
    return by_query, by_key, lse


def _way(query: Tensor, key: Tensor, implementation: str, writes: bool) -> str:
    dispatch.check_implementation(implementation, IMPLEMENTATIONS)
    asked = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    if asked and (writes or implementation in ("fused", "in_place")):
        what = "out" if writes else f"implementation={implementation!r}"
        raise ValueError(f"{OP}: {what} has no gradient, and one is asked for: use 'reference', or torch.no_grad()")
    if implementation == "reference" or asked:
        return "reference"
    if implementation == "fused" and query.shape[3] > WIDEST:
        raise ValueError(f"{OP}: implementation='fused' takes heads of at most {WIDEST}, got {query.shape[3]}")
    if implementation != "in_place" and query.shape[3] <= WIDEST and dispatch.use_fused(OP, implementation, query, key):
        return "fused"
    transformed = peek_interpreter_stack() is not None or torch.compiler.is_compiling() or query.numel() == 0
    return "reference" if transformed and implementation == "auto" else "in_place"
