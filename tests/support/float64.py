"""What tests of energies share: weights away from their start, and the gradient of each token's own energy."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paper_repro.models.common import CausalLanguageModel


def in_float64(make: Callable[[], Any]) -> Any:
    """What ``make`` builds, its tables of positions in float64, too."""
    torch.set_default_dtype(torch.float64)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)


def randomised(module: Any, scale: float = 0.4) -> Any:
    """In float64, trained matrices drawn anew and trained vectors moved away from their start, alike in every test."""
    generator = torch.Generator().manual_seed(5)
    module = module.double()
    for parameter in module.parameters():
        if parameter.requires_grad:
            drawn = scale * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.data = drawn if parameter.ndim >= 2 else parameter.data + drawn
    return module


def tokens(*shape: int) -> Tensor:
    """The same normal numbers in every test."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def states(model: CausalLanguageModel, ids: Tensor) -> Tensor:
    """The states x_0 ... x_S, (S + 1, B, T, D), before the output."""
    found = [model.embed(ids)]
    for layer in model.layers():
        found.append(layer(found[-1]))
    return torch.stack(found)


def own_gradient(energy: Callable[[Tensor], Tensor], g: Tensor) -> Tensor:
    """dE_A/dg_A by autograd, (B, T, D), for energy (B, T, D) -> (B, T)."""
    g = g.clone().requires_grad_()
    energies = energy(g)
    own = [torch.autograd.grad(energies[:, token].sum(), g, retain_graph=True)[0] for token in range(g.shape[1])]
    return torch.stack([gradient[:, token] for token, gradient in enumerate(own)], 1)


def assert_exact(found: Tensor, expected: Tensor) -> None:
    """Rounding of float64 in sums over fewer than a hundred terms."""
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
