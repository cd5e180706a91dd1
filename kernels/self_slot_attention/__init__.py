"""EBT's attention of candidates: each row reads what was observed before it, and itself as one more column.

Legend: B sequences, N samples, H heads, T tokens, Y channels of a head, Z channels of its values.
"""

import math

from torch import Tensor

from paper_repro.kernels.dispatch import Way, choose, closed_form_way, derivative_order, triton_way
from paper_repro.kernels.self_slot_attention import closed_form, reference
from paper_repro.kernels.self_slot_attention.second_order import Passes, attend

OP = "self_slot_attention"
LEAST_SCORES = (1 << 16, 1 << 18, 1 << 20)
"""N B H T (T + lead), from which on "auto" takes the closed form on a CPU, without derivatives, with first and with
second ones.  Measured on one thread with Y = 64: there it takes as long as the definition, give or take a fifth, and
less beyond (T = 256 and longer).  With second derivatives it takes half the definition's memory at T = 128, less than
a third at T = 256."""
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

    (Energy-Based Transformers, appendix C.6.)  The official code makes the same numbers: it appends a column to the
    scores, and writes the own ones over the superdiagonal.

    Queries of N samples may share the observed keys and values of B sequences, which are then not copied: row n B + b
    of ``query``, ``own_key`` and ``own_value`` is sample n of sequence b.

    "reference" is the definition, which holds all scores and which autograd differentiates to any order.  "fused"
    (Triton) and "closed_form" (PyTorch, some rows at a time) have first and second derivatives in reverse mode, by
    autograd and by torch.func.grad in any nesting of two; they keep o and lse alone, and never hold T^2 scores.  "auto"
    takes the kernels on CUDA and the closed form on a CPU where scores are many (``LEAST_SCORES``), else, and where
    third or forward-mode derivatives may be asked for, under vmap, torch.compile and a CPU's autocast, the definition.

    Args:
        query, own_key: (N B, H, T, Y).
        own_value: (N B, H, T, Z).
        keys: (B, H, T + lead, Y), of the observed columns.
        values: (B, H, T + lead, Z).
        lead: observed columns before the first token, which every row reads: 1 for the step token of "time_embed".
        scale: 1/sqrt(Y) if None.

    Returns:
        (N B, H, T, Z).

    Raises:
        ValueError: shapes that do not fit, a negative lead, an unknown implementation, or one that is not possible.
        NotImplementedError: a third or forward-mode derivative through the kernels or the closed form.
    """
    tensors = query, own_key, own_value, keys, values
    return self_slot_attention_with_lse(*tensors, lead, scale, implementation)[0]


def self_slot_attention_with_lse(
    query: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    keys: Tensor,
    values: Tensor,
    lead: int = 0,
    scale: float | None = None,
    implementation: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute o of ``self_slot_attention`` and lse_i = log(sum_{j <= i + lead} exp(s_ij) + exp(s_i,own)).

    Both have derivatives of the same orders.

    Returns:
        o (N B, H, T, Z) and lse (N B, H, T), this in float32 (float64 where the inputs are).

    Raises:
        ValueError, NotImplementedError: as ``self_slot_attention``.
    """
    tensors = query, own_key, own_value, keys, values
    _check(*tensors, lead)
    order, width = derivative_order(*tensors), max(query.shape[3], values.shape[3])
    large = many_scores(query, keys, order)
    way = choose(OP, WAYS, implementation, tensors, order=order, width=width, large=large)
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    return way(*tensors, lead, scale)  # (N B, H, T, Z), (N B, H, T)


def many_scores(query: Tensor, keys: Tensor, order: int) -> bool:
    """Return whether the closed form pays for derivatives up to the order."""
    return math.prod(query.shape[:3]) * keys.shape[2] >= LEAST_SCORES[min(order, 2)]


def fused_passes() -> Passes:
    """Return how Triton's kernels go over the observed columns."""
    from paper_repro.kernels.self_slot_attention import fused
    from paper_repro.kernels.self_slot_attention.curvature import fused as curvature

    return Passes(fused.forward, fused.gradient, curvature.curvature)


def _fused(
    query: Tensor, own_key: Tensor, own_value: Tensor, keys: Tensor, values: Tensor, lead: int, scale: float
) -> tuple[Tensor, Tensor]:
    return attend(fused_passes(), query, own_key, own_value, keys, values, lead, scale)  # (N B, H, T, Z), (N B, H, T)


def _closed_form(
    query: Tensor, own_key: Tensor, own_value: Tensor, keys: Tensor, values: Tensor, lead: int, scale: float
) -> tuple[Tensor, Tensor]:
    return attend(closed_form.PASSES, query, own_key, own_value, keys, values, lead, scale)


WAYS = (
    triton_way(_fused, order=2, widest=WIDEST, transforms=True),
    closed_form_way(_closed_form, order=2, auto_on=("cpu",), auto_large=True),
    Way("reference", reference.self_slot_attention),
)


def _check(query: Tensor, own_key: Tensor, own_value: Tensor, keys: Tensor, values: Tensor, lead: int) -> None:
    if not isinstance(lead, int) or lead < 0:
        raise ValueError(f"lead must be a whole number of at least 0, got {lead!r}")
    tensors = query, own_key, own_value, keys, values
    fitting = all(tensor.ndim == 4 for tensor in tensors) and (
        query.shape == own_key.shape
        and query.shape[:3] == own_value.shape[:3]
        and keys.shape[:3] == values.shape[:3]
        and keys.shape[1:] == (query.shape[1], query.shape[2] + lead, query.shape[3])
        and own_value.shape[3] == values.shape[3]
        and keys.shape[0] > 0
        and query.shape[0] % keys.shape[0] == 0
    )
    if not fitting:
        found = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(
            "shapes must be query and own_key (N B, H, T, Y), own_value (N B, H, T, Z), keys (B, H, T + lead, Y), "
            f"values (B, H, T + lead, Z); got {found} and lead {lead}"
        )
