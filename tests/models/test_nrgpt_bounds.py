import pytest
import torch
from torch import Tensor

from paper_repro.models.nrgpt import (
    NRGPT,
    NRGPT_H_FF1,
    NRGPT_H_FF2,
    NRGPT_H_FF2W,
    NRGPTAttention,
    attention_bounds,
    feed_forward_bound,
    radius,
)
from paper_repro.tests.support.float64 import randomised

WIDTH, TOKENS = 12, 7
ROUNDING = 1e-10
"""Relative, of sums over some ten terms in float64."""


def build(kind: type[NRGPT], **changes: object) -> NRGPT:
    torch.manual_seed(0)
    sizes = {"vocabulary_size": 5, "block_length": TOKENS, "width": WIDTH, "num_heads": 1, "num_steps": 2}
    return kind(**{**sizes, **changes})  # type: ignore[arg-type]


def shares(model: NRGPT, x: Tensor) -> tuple[float, float]:
    """The largest share of its bound that each of the two energies takes up at the states x, (B, T, D)."""
    energies, r = model.energies(x), radius(model)
    low, high = attention_bounds(model.attention, r, x.shape[1])
    assert bool((energies.attention >= low - ROUNDING * (1 + low.abs())).all())
    assert bool((energies.attention <= high + ROUNDING * (1 + high.abs())).all())
    reach = (high - low)[-1] / 2
    attention = float(((energies.attention[:, -1] - (high + low)[-1] / 2).abs() / reach).max())
    return attention, float(energies.feed_forward.abs().max()) / feed_forward_bound(model.feed_forward, r)


def adversarial(model: NRGPT) -> Tensor:
    """States that lie along what the weights stretch most, and huge, tiny and random ones, (B, T, D)."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(6, TOKENS, WIDTH, dtype=torch.float64, generator=generator)
    directions = [model.attention.key.weight[:WIDTH].T]
    directions += [weight for weight in model.feed_forward.parameters() if weight.shape[-1] == WIDTH]
    directions = [torch.linalg.svd(weight.reshape(-1, WIDTH), full_matrices=False)[2][0] for weight in directions]
    if (bias := getattr(model.norm, "bias", None)) is not None:
        directions.append(bias)
    aligned = [sign * direction.expand(1, TOKENS, WIDTH) for direction in directions for sign in (1, -1)]
    return torch.cat([noise, 1e6 * noise, 1e-6 * noise, *aligned])


@pytest.mark.parametrize("num_heads", [1, 3])
@pytest.mark.parametrize("norm", ["frozen_layer_norm", "layer_norm", "rms_norm"])
@pytest.mark.parametrize("kind", [NRGPT_H_FF1, NRGPT_H_FF2W, NRGPT_H_FF2])
@torch.no_grad()
def test_no_state_breaks_a_bound(kind: type[NRGPT], norm: str, num_heads: int) -> None:
    for mask in ("strict", "inclusive"):
        for beta in ("one", "inverse_root_head_width"):
            options = {"mask": mask, "beta": beta, "learn_head_weights": True}
            model = randomised(build(kind, norm=norm, num_heads=num_heads, **options))
            assert model.attention.head_weights is not None
            model.attention.head_weights.copy_(torch.tensor([1.5, -2.0, 0.3])[:num_heads])
            for scale, shift in ((1.0, 0.0), (3.0, 5.0), (0.01, 20.0)):
                if norm != "frozen_layer_norm":
                    model.norm.weight.copy_(scale * torch.linspace(-1.0, 1.0, WIDTH))
                if norm != "rms_norm":
                    model.norm.bias.copy_(shift * torch.linspace(-1.0, 1.0, WIDTH))
                attention, feed_forward = shares(model, adversarial(model))
                assert 0 < attention <= 1 + ROUNDING and 0 < feed_forward <= 1 + ROUNDING


@pytest.mark.parametrize("mask", ["strict", "inclusive"])
@pytest.mark.parametrize("sign", [1, -1])
@torch.no_grad()
def test_tokens_along_the_strongest_direction_attain_the_attention_bound(sign: int, mask: str) -> None:
    attention = NRGPTAttention(WIDTH, 2, mask, learn_head_weights=True).double()
    assert attention.head_weights is not None
    attention.head_weights.copy_(torch.tensor([0.5, 2.0]))
    g = torch.arange(1.0, WIDTH + 1, dtype=torch.float64)
    r = float(g.norm())
    along = torch.outer(g, g) / r**2
    attention.key.weight.copy_(torch.cat([0.3 * sign * along, 0.01 * sign * along]))
    low, high = attention_bounds(attention, r, TOKENS)
    found = attention.energy(g.expand(1, TOKENS, WIDTH))[0]
    torch.testing.assert_close(found, low if sign > 0 else high, rtol=1e-12, atol=1e-12)
    first_key = 1 if mask == "strict" else 0
    assert bool((low[first_key:] < high[first_key:]).all()) and (mask == "inclusive" or low[0] == high[0] == 0)
