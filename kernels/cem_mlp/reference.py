"""The definition: S inner steps of the CEM MLP in plain PyTorch, differentiated by autograd to any order."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": functional.silu, "gelu": functional.gelu}


def descend(
    x: Tensor, gamma: Tensor, reading: Tensor, writing: Tensor, num_steps: int, step_size: float, activation: str
) -> Tensor:
    """Repeat x <- x + step_size * writing^T (gamma * act(reading x)); shapes as in ``paper_repro.kernels.cem_mlp``."""
    act = ACTIVATIONS[activation]
    tokens = (*reading.shape[:-2], -1)
    state, context = x.reshape(*tokens, x.shape[-1]), gamma.reshape(*tokens, gamma.shape[-1])
    for _ in range(num_steps):
        state = state + step_size * torch.matmul(context * act(torch.matmul(state, reading.mT)), writing)
    return state.reshape(x.shape)
