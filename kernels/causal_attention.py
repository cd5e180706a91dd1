"""Causal attention: torch's fused kernel where first derivatives are enough, also for models that vmap stacks; ours
where second ones may be asked for.

Legend: B sequences, H heads, T tokens, Y channels of a head, Z channels of its values, E stacked models.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, peek_interpreter_stack
from torch.autograd import Function
from torch.nn import functional

from paper_repro.kernels.dispatch import Shapes, Way, choose, derivative_order, triton_way
from paper_repro.kernels.first_order import joined
from paper_repro.kernels.self_slot_attention import op as self_slot_attention
from paper_repro.models import common


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
    dropout: float = 0.0,
    implementation: str = "auto",
) -> Tensor:
    """Compute sum_B p_AB v_B with p_AB = softmax over B <= A of scale * q_A . k_B: causal scaled_dot_product_attention.

    "fused" is torch's scaled_dot_product_attention, which has first derivatives only (pytorch#116350) and then raises
    torch's own "derivative ... is not implemented".  "auto" takes it unless a second or forward-mode derivative may be
    asked for, whatever the process prefers.  Where a second one may be, and there is no dropout, "fused" is a Triton
    kernel with first and second derivatives in reverse mode, which holds no T^2 scores; "auto" takes it on CUDA.

    Under ``torch.func.vmap``, where torch would loop over the models, the stacked dimension joins the batch.

    Args:
        query, key: (B, H, T, Y).
        value: (B, H, T, Z).
        scale: 1/sqrt(Y) if None.
        dropout: on the probabilities; 0 outside training.

    Returns:
        (B, H, T, Z).
    """
    tensors, order = (query, key, value), derivative_order(query, key, value)
    SHAPES.check(*tensors)
    ways = WAYS if dropout == 0 else (WAYS[0], WAYS[-1])
    width = max(query.shape[3], value.shape[3])
    if implementation == "auto" and order < 2:
        return _fused(query, key, value, scale, dropout)
    way = choose("causal_attention", ways, implementation, tensors, order=order, width=width)
    return way(query, key, value, scale, dropout)


def _fused(query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
    innermost = None if torch.compiler.is_compiling() else peek_interpreter_stack()  # a compiler traces the plain call
    if dropout == 0 and innermost is not None and innermost.key() == TransformType.Vmap:
        attended: Tensor = _Folded.apply(query, key, value, scale)
        return attended
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True, scale=scale)


def _fused_to_second_order(query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
    number = 1 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    return self_slot_attention.fused(query, None, None, key, value, lead=0, scale=number)


SHAPES = Shapes(query="B H T Y", key="B H T Y", value="B H T Z")
WAYS: tuple[Way[Callable[..., Tensor]], ...] = (  # all but the first and the last are without dropout
    Way("fused", _fused, order=1),
    triton_way(_fused_to_second_order, order=2, widest=self_slot_attention.WIDEST, transforms=True, auto_order=2),
    Way("reference", common.causal_attention),
)


class _Folded(Function):
    """The batching rule: it runs one level below ``vmap`` and calls the kernel there."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        return _fused(query, key, value, scale, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Tensor, int]:
        pairs = zip(given, in_dims, strict=True)
        query, key, value, scale = (joined(info.batch_size, *pair) for pair in pairs)  # (E B, H, T, Y or Z) each
        out = _fused(query, key, value, scale, 0.0)  # (E B, H, T, Z)
        return out.unflatten(0, (info.batch_size, -1)), 0  # (E, B, H, T, Z)
