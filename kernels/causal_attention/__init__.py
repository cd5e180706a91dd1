"""Causal attention that stays one fused kernel where torch.func.vmap stacks models.

torch has no batching rule for the CPU's fused attention: under ``vmap`` it runs a loop over the models (2.11 to 2.13).
"""

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, peek_interpreter_stack
from torch.autograd import Function
from torch.nn import functional


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """sum_B p_AB v_B with p_AB = softmax over B <= A of scale * q_A . k_B: causal scaled_dot_product_attention.

    Under ``torch.func.vmap`` the stacked dimension joins the batch, and derivatives are recorded below it, as plain
    autograd does; with ``torch.func.grad`` inside ``vmap``, and with dropout, torch's own rules serve.

    Args:
        query, key: (B, H, T, Y): B sequences, H heads, T tokens, Y channels.
        value: (B, H, T, Z).
        scale: 1/sqrt(Y) if None.
        dropout: on the probabilities; 0 outside training.

    Returns:
        (B, H, T, Z).

    Raises:
        ValueError: a tensor is not four-dimensional.
    """
    if not query.ndim == key.ndim == value.ndim == 4:
        found = ", ".join(str(tuple(tensor.shape)) for tensor in (query, key, value))
        raise ValueError(f"query, key and value must have the shape (B, H, T, Y), got {found}")
    if dropout == 0 and _inside_vmap():
        attended: Tensor = _Folded.apply(query, key, value, scale)
        return attended
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True, scale=scale)


def _inside_vmap() -> bool:
    """Whether the innermost transform is vmap; a compiler traces the plain call."""
    if torch.compiler.is_compiling():
        return False
    innermost = peek_interpreter_stack()
    return innermost is not None and innermost.key() == TransformType.Vmap


class _Folded(Function):
    """The batching rule.  It runs one level below ``vmap`` and calls ``causal_attention`` there."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        return causal_attention(query, key, value, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], query: Tensor, key: Tensor, value: Tensor, scale: float | None
    ) -> tuple[Tensor, int]:
        folded = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((query, key, value), in_dims, strict=False)
        ]
        query, key, value = (tensor.flatten(0, 1) for tensor in folded)
        out = causal_attention(query, key, value, scale)
        return out.unflatten(0, (info.batch_size, -1)), 0
