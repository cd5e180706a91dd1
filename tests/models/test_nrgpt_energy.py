import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.models import nrgpt as nrgpt_energy
from paper_repro.tests.support.float64 import assert_exact, own_gradient, randomised, tokens

FEED_FORWARDS = [nrgpt_energy.OneLayerEnergy, nrgpt_energy.TwoWeightEnergy, nrgpt_energy.TwoLayerEnergy]


def _attention_energy(attention: nrgpt_energy.NRGPTAttention, query: Tensor, source: Tensor, strict: bool) -> Tensor:
    """Equation 11 term by term, with keys from ``source``; both (B, T, D)."""
    maps = attention.key.weight.unflatten(0, (attention.num_heads, -1))
    weights = attention.head_weights if attention.head_weights is not None else torch.ones(attention.num_heads)
    rows = [torch.zeros(len(query), dtype=query.dtype)] if strict else []
    for token in range(len(rows), query.shape[1]):
        past = source[:, :token] if strict else source[:, : token + 1]
        scores = torch.einsum("bd,hde,bte->bht", query[:, token], maps, past)
        rows.append(-(torch.logsumexp(attention.beta * scores, -1) @ weights.to(scores)) / attention.beta)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("beta", nrgpt_energy.BETAS)
@pytest.mark.parametrize("learn_head_weights", [False, True])
@pytest.mark.parametrize("mask", nrgpt_energy.MASKS)
def test_attention_energy_equals_its_definition(mask: str, learn_head_weights: bool, beta: str) -> None:
    attention = randomised(nrgpt_energy.NRGPTAttention(12, 3, mask, beta, learn_head_weights))
    g = tokens(2, 9, 12)
    assert_exact(attention.energy(g), _attention_energy(attention, g, g, mask == "strict"))


@pytest.mark.parametrize("beta", nrgpt_energy.BETAS)
@pytest.mark.parametrize("learn_head_weights", [False, True])
def test_under_the_strict_mask_the_gradient_is_that_of_the_tokens_energy(learn_head_weights: bool, beta: str) -> None:
    attention = randomised(nrgpt_energy.NRGPTAttention(12, 3, "strict", beta, learn_head_weights))
    g = tokens(2, 9, 12)
    assert_exact(attention.gradient(g), own_gradient(attention.energy, g))


@pytest.mark.parametrize("beta", nrgpt_energy.BETAS)
@pytest.mark.parametrize("learn_head_weights", [False, True])
def test_under_the_inclusive_mask_the_gradient_holds_the_keys_fixed(learn_head_weights: bool, beta: str) -> None:
    attention = randomised(nrgpt_energy.NRGPTAttention(12, 3, "inclusive", beta, learn_head_weights))
    g = tokens(2, 9, 12)
    assert_exact(attention.gradient(g), own_gradient(lambda q: _attention_energy(attention, q, g, False), g))
    assert (attention.gradient(g) - own_gradient(attention.energy, g)).abs().max() > 0.1


@pytest.mark.parametrize("mask", nrgpt_energy.MASKS)
def test_the_gradient_is_not_that_of_the_sum_over_tokens(mask: str) -> None:
    attention, g = randomised(nrgpt_energy.NRGPTAttention(12, 3, mask)), tokens(2, 9, 12).requires_grad_()
    (of_sum,) = torch.autograd.grad(attention.energy(g).sum(), g)
    assert (attention.gradient(g) - of_sum).abs().max() > 0.1


@pytest.mark.parametrize("kind", FEED_FORWARDS)
def test_feed_forward_gradient_is_that_of_its_energy(kind: type[nrgpt_energy.FeedForwardEnergy]) -> None:
    feed_forward, g = randomised(kind(7, 19)), tokens(2, 9, 7)
    assert_exact(feed_forward.gradient(g), own_gradient(feed_forward.energy, g))


def test_the_second_term_of_equation_24_is_not_the_gradient() -> None:
    feed_forward, g = randomised(nrgpt_energy.TwoWeightEnergy(7, 19)), tokens(2, 9, 7)
    z = feed_forward.up(g)
    printed = nrgpt_energy.gelu_slope(functional.gelu(g @ feed_forward.down.weight), z) @ feed_forward.up.weight
    printed = -(feed_forward.down(functional.gelu(z)) + printed)
    assert (printed - own_gradient(feed_forward.energy, g)).abs().max() > 0.1


@pytest.mark.parametrize("kind", FEED_FORWARDS)
def test_derivatives_of_the_feed_forward_gradient(kind: type[nrgpt_energy.FeedForwardEnergy]) -> None:
    feed_forward, g = randomised(kind(3, 5)), tokens(2, 3).requires_grad_()
    names, values = zip(*feed_forward.named_parameters(), strict=True)

    class Gradient(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = feed_forward

        def forward(self, at: Tensor) -> Tensor:
            return self.inner.gradient(at)

    def gradient(at: Tensor, *weights: Tensor) -> Tensor:
        named = {f"inner.{name}": weight for name, weight in zip(names, weights, strict=True)}
        return torch.func.functional_call(Gradient(), named, (at,))

    assert torch.autograd.gradcheck(gradient, (g, *values))
