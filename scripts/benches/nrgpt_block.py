"""One step of NRGPT, forward and backward: the closed form against torch.func.grad of the same energy."""

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from side_by_side import Comparison, Results, largest_error, timed, with_gradients
from torch import Tensor
from torch.nn import functional

from paper_repro.models import nrgpt
from paper_repro.training.counting import count_flops

MODELS: tuple[type[nrgpt.NRGPT], ...] = (nrgpt.NRGPT_H_FF1, nrgpt.NRGPT_H_FF2W, nrgpt.NRGPT_H_FF2)
"""The first two are those of the paper."""
WINDOW, STEPS_PER_ROUND = 256, 5


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare steps of width 128 on a CPU, of three widths elsewhere."""
    sizes = [(128, 8, 1.1)] if device.type == "cpu" else [(64, 64, 3.0), (128, 64, 3.0), (768, 16, None)]
    for width, batch_size, goal in sizes:
        for make in MODELS:
            yield _step(make, width, batch_size, goal, device)


def _step(make: type[nrgpt.NRGPT], width: int, batch_size: int, goal: float | None, device: torch.device) -> Comparison:
    torch.manual_seed(0)
    closed = make(1, WINDOW, width, num_heads=1, num_steps=1).to(device)
    by_autograd = copy.deepcopy(closed)
    x = torch.randn(batch_size, WINDOW, width, device=device)
    ours = _pass(closed, closed.gradients, x)
    other = _pass(by_autograd, partial(_by_autograd, by_autograd), x)
    case = f"{make.__name__}, D={width}, batch {batch_size}, window {WINDOW}"
    sides = ours, other, "torch.func.grad of the energy"
    counted: dict[str, Any] = {"error": largest_error(ours(), other()), "flops": count_flops(ours)}
    return timed(case, "ms per step", *sides, device, calls=STEPS_PER_ROUND, goal=goal, **counted)


def attention_energy(query: Tensor, key: Tensor, beta: float) -> Tensor:
    """Compute -1/beta sum_h log sum_{B <= A} exp(beta q_A . k_Bh) (NRGPT, equation 11), (B, T), of q (B, T, D) and
    k (B, H, T, D); for the mask B < A give queries 1 ... T-1 and keys 0 ... T-2.
    """
    scores = beta * torch.matmul(query.unsqueeze(1), key.mT)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
    return -scores.masked_fill(future, -math.inf).logsumexp(-1).sum(1) / beta


def _by_autograd(model: nrgpt.NRGPT, x: Tensor) -> nrgpt.NRGPTGradients:
    """Return ``NRGPT.gradients`` by functional autograd of the energies, the keys held fixed."""
    attention, feed_forward = model.attention, model.feed_forward
    g = model.norm(x)
    key = attention.key(g[:, :-1]).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    return nrgpt.NRGPTGradients(
        torch.func.grad(lambda at: attention_energy(at[:, 1:], key, attention.beta).sum())(g),
        torch.func.grad(lambda at: feed_forward.energy(at).sum())(g),
    )


def _pass(model: nrgpt.NRGPT, gradients: Callable[[Tensor], nrgpt.NRGPTGradients], x: Tensor) -> Results:
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
