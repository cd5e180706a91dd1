"""One step of NRGPT, forward and backward: the closed form against torch.func.grad of the same energy."""

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.models import nrgpt
from paper_repro.scripts.side_by_side import Comparison, Work, timed, with_gradients
from paper_repro.training.counting import count_flops

MODELS: tuple[type[nrgpt.NRGPT], ...] = (nrgpt.NRGPT_H_FF1, nrgpt.NRGPT_H_FF2W, nrgpt.NRGPT_H_FF2)
"""The first two are those of the paper."""
WINDOW = 256


def nrgpt_block(device: torch.device) -> Iterator[Comparison]:
    """Compare steps of width 128 on a CPU, of three widths elsewhere."""
    sizes = [(128, 8, 1.1)] if device.type == "cpu" else [(64, 64, 3.0), (128, 64, 3.0), (768, 16, None)]
    for width, batch_size, goal in sizes:
        for make in MODELS:
            torch.manual_seed(0)
            closed = make(1, WINDOW, width, num_heads=1, num_steps=1).to(device)
            by_autograd = copy.deepcopy(closed)
            x = torch.randn(batch_size, WINDOW, width, device=device)
            ours = _pass(closed, closed.gradients, x)
            sides = ours, _pass(by_autograd, partial(_by_autograd, by_autograd), x), "torch.func.grad of the energy"
            case = f"{make.__name__}, D={width}, batch {batch_size}, window {WINDOW}"
            yield timed(case, "ms per step", *sides, calls=5, goal=goal, flops=count_flops(ours))


def _by_autograd(model: nrgpt.NRGPT, x: Tensor) -> nrgpt.NRGPTGradients:
    """Return ``NRGPT.gradients`` at x (B, T, D) by functional autograd of the energies, the keys held fixed."""
    attention, feed_forward = model.attention, model.feed_forward
    g = model.norm(x)
    key = attention.key(g[:, :-1]).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)  # (B, H, T - 1, D)
    future = torch.ones(key.shape[-2], key.shape[-2], dtype=torch.bool, device=x.device).triu(1)

    def energy(at: Tensor) -> Tensor:
        """Sum -1/beta sum_h log sum_{B < A} exp(beta q_A . k_Bh) (NRGPT, equation 11) over tokens A."""
        scores = attention.beta * torch.matmul(at[:, 1:].unsqueeze(1), key.mT)
        return -scores.masked_fill(future, -math.inf).logsumexp(-1).sum() / attention.beta

    return nrgpt.NRGPTGradients(
        torch.func.grad(energy)(g), torch.func.grad(lambda at: feed_forward.energy(at).sum())(g)
    )


def _pass(model: nrgpt.NRGPT, gradients: Callable[[Tensor], nrgpt.NRGPTGradients], x: Tensor) -> Work:
    """Return what computes the update, and the gradients of x and of all that it depends on."""
    state = x.clone().requires_grad_()
    blocks = (model.norm, model.attention, model.feed_forward, model.inference_rate)
    leaves = [state, *(leaf for block in blocks for leaf in block.parameters() if leaf.requires_grad)]

    def update() -> Tensor:
        attention, feed_forward = gradients(state)
        coefficient = model.inference_rate.coefficient(model.norm_scale)
        assert coefficient is not None
        return functional.linear(attention + model.feed_forward_scale * feed_forward, coefficient)

    return with_gradients(update, leaves)
