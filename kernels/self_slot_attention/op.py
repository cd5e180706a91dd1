"""EBT's attention of candidates: each row reads what was observed before it, and itself as one more column.

Legend: B sequences, N samples, H heads, T tokens, Y channels of a head, Z channels of its values.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from paper_repro.kernels.dispatch import Shapes, Way, choose, triton_way
from paper_repro.models import common

WIDEST = 128
"""The fused kernels hold whole rows of heads in registers."""


def self_slot_attention(
    query: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    keys: Tensor,
    values: Tensor,
    lead: int = 0,
    scale: float | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Compute o_i = sum_{j <= i + lead} p_ij v_j + p_i,own v_own,i, where p is the softmax over all these columns of

        s_ij = scale q_i . k_j,   s_i,own = scale q_i . k_own,i

    (Energy-Based Transformers, appendix C.6.)  N samples may share the observed keys and values of B sequences: row
    n B + b of ``query``, ``own_key`` and ``own_value`` is sample n of sequence b.

    "fused" (Triton) has first and second derivatives in reverse mode, keeps o and lse alone for them, and never holds
    anything of the size T x T.

    Args:
        query, own_key: (N B, H, T, Y).
        own_value: (N B, H, T, Z).
        keys: (B, H, T + lead, Y), of the observed columns.
        values: (B, H, T + lead, Z).
        lead: observed columns before the first token, which every row reads.
        scale: 1/sqrt(Y) if None.

    Returns:
        (N B, H, T, Z).
    """
    tensors = query, own_key, own_value, keys, values
    if not isinstance(lead, int) or lead < 0:
        raise ValueError(f"lead must be a whole number of at least 0, got {lead!r}")
    SHAPES.check(*tensors)
    if keys.shape[2] != query.shape[2] + lead or not len(keys) or len(query) % len(keys):
        raise ValueError(f"queries {tuple(query.shape)} do not fit keys {tuple(keys.shape)} and lead {lead}")
    width = max(query.shape[3], values.shape[3])
    attend = choose("self_slot_attention", WAYS, implementation, tensors, width=width)
    return attend(*tensors, lead=lead, scale=1 / math.sqrt(query.shape[3]) if scale is None else float(scale))


def fused(*tensors: Tensor | None, **options: Any) -> Tensor:
    """Compute o (N B, H, T, Z) of the query, own keys and values, or None and None, keys and values."""
    from paper_repro.kernels.self_slot_attention import triton

    return triton.attend(*tensors, **options)


SHAPES = Shapes(query="R H T Y", own_key="R H T Y", own_value="R H T Z", keys="B H C Y", values="B H C Z")
WAYS: tuple[Way[Callable[..., Tensor]], ...] = (
    triton_way(fused, order=2, widest=WIDEST, transforms=True),
    Way("reference", common.self_slot_attention),
)
