import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paper_repro.kernels.preferences import prefer
from paper_repro.models import nrgpt
from paper_repro.tests.support.float64 import assert_exact, own_gradient, randomised, tokens

SIZES = {"vocabulary_size": 11, "block_length": 9, "width": 6, "num_heads": 2, "num_steps": 3}
MODELS = [nrgpt.NRGPT_H_FF1, nrgpt.NRGPT_H_FF2W, nrgpt.NRGPT_H_FF2]
FITTING = [
    (norm, rate)
    for norm in nrgpt.NORMS
    for rate in nrgpt.INFERENCE_RATES
    if rate != "norm_scale" or norm in nrgpt.WITH_LEARNABLE_SCALE
]
IDS = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(4))


def test_norms_equal_equation_17() -> None:
    x = tokens(2, 9, 6)
    shift = x - x.mean(-1, keepdim=True)
    for kind in nrgpt.NORMS:
        norm = randomised(nrgpt.NRGPT_H_FF1(**SIZES, norm=kind)).norm
        centred = x if kind in ("rms_norm", "none") else shift
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        weights = dict(norm.named_parameters())
        expected = x if kind == "none" else scaled * weights["weight"] + weights.get("bias", torch.zeros(()))
        assert_exact(norm(x), expected)


def _rate_matrix(model: nrgpt.NRGPT) -> Tensor:
    weights = dict(model.inference_rate.named_parameters())
    if "weight" in weights:
        return weights["weight"]
    if "root" in weights:
        return weights["root"].T @ weights["root"] + weights["skew"] - weights["skew"].T
    c = weights["log_c"].exp() if weights else torch.ones(1, dtype=torch.float64)
    scale = model.norm.weight if model.inference_rate.kind == "norm_scale" else torch.ones(6)
    assert isinstance(scale, Tensor)
    return torch.diag(c * scale)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize(("norm", "rate"), FITTING)
def test_the_update_is_minus_the_rate_times_the_gradient_of_the_energy(
    make: type[nrgpt.NRGPT], norm: str, rate: str
) -> None:
    model = randomised(make(**SIZES, norm=norm, inference_rate=rate))
    x = tokens(2, 9, 6)

    def total(g: Tensor) -> Tensor:
        return model.attention.energy(g) + model.feed_forward_scale * model.feed_forward.energy(g)

    assert_exact(model.energies(x).total, total(model.norm(x)))
    expected = -own_gradient(total, model.norm(x).detach()) @ _rate_matrix(model).mT
    torch.testing.assert_close(model.step(x) - x, expected, rtol=1e-10, atol=1e-10)


def test_the_symmetric_part_of_psd_skew_is_positive_semi_definite() -> None:
    for rank in (2, 6, 9):
        rate = randomised(nrgpt.InferenceRate("psd_skew", 6, rank), 2.0).coefficient(None)
        values = torch.linalg.eigvalsh((rate + rate.mT) / 2)
        assert values.min() > -1e-12 * values.max() and (values > 1e-9 * values.max()).sum() == min(rank, 6)
        assert (rate - rate.mT).abs().max() > 0.1


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize(
    ("norm", "rate"), [("layer_norm", "norm_scale"), ("rms_norm", "norm_scale"), ("none", "psd_skew")]
)
def test_the_first_tokens_energy_falls_as_the_propositions_say(make: type[nrgpt.NRGPT], norm: str, rate: str) -> None:
    """Propositions 2.1 and 2.2, for the token that no other token disturbs; a scale of mixed signs is no exception."""
    model = randomised(make(**SIZES, norm=norm, inference_rate=rate))
    with torch.no_grad():
        if rate == "norm_scale":
            model.norm.weight.copy_(torch.tensor([1.5, -0.5, 1.0, -2.0, 0.7, 1.1]))
            model.inference_rate.log_c.fill_(math.log(1e-3))
        else:
            model.inference_rate.root.mul_(0.05)
            model.inference_rate.skew.mul_(1e-4)
    total = model.trace(IDS, num_steps=20).energies.total
    assert total[:, :, 0].diff(dim=0).max() < 0


@pytest.mark.parametrize("mask", nrgpt.MASKS)
@pytest.mark.parametrize("make", MODELS)
def test_no_logit_sees_a_later_token(make: type[nrgpt.NRGPT], mask: str) -> None:
    model = randomised(make(**SIZES, mask=mask), 0.2)
    ids = IDS
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % model.vocabulary_size
    before, after = model(ids), model(changed)
    assert_exact(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amax(-1).min() > 1e-6


def test_the_first_token_has_no_attention_energy_under_the_strict_mask() -> None:
    model = randomised(nrgpt.NRGPT_H_FF1(**SIZES))
    for length in (1, 2, 5):
        x = tokens(2, length, 6)
        energies, gradients = model.energies(x), model.gradients(x)
        assert energies.attention.shape == (2, length) and gradients.attention.shape == (2, length, 6)
        assert not energies.attention[:, 0].any() and not gradients.attention[:, 0].any()
    model(IDS[:, :1]).sum().backward()


@pytest.mark.parametrize("rate", nrgpt.INFERENCE_RATES)
def test_recomputed_steps_give_the_same_gradients(rate: str) -> None:
    model = randomised(nrgpt.NRGPT_H_FF2W(**SIZES, norm="layer_norm", inference_rate=rate, dropout=0.3), 0.1)
    gradients = []
    for recompute in (False, True):
        model.zero_grad()
        torch.manual_seed(6)
        with prefer(recompute=recompute):
            model(IDS).square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for kept, recomputed in zip(*gradients, strict=True):
        assert_exact(recomputed, kept)


def test_dropout_acts_in_training_only_and_never_on_energies() -> None:
    model = randomised(nrgpt.NRGPT_H_FF1(**SIZES, dropout=0.5))
    x = tokens(2, 9, 6)
    assert not torch.equal(model.gradients(x).attention, model.gradients(x).attention)
    assert torch.equal(model.gradients(x).feed_forward, model.gradients(x).feed_forward)
    assert torch.equal(model.energies(x).total, model.energies(x).total)
    model.eval()
    assert_exact(model.gradients(x).attention, own_gradient(model.attention.energy, model.norm(x).detach()))


# The energies.

FEED_FORWARDS = [nrgpt.OneLayerEnergy, nrgpt.TwoWeightEnergy, nrgpt.TwoLayerEnergy]


def _attention_energy(attention: nrgpt.NRGPTAttention, query: Tensor, source: Tensor, strict: bool) -> Tensor:
    """Equation 11 term by term, with keys from ``source``; both (B, T, D)."""
    maps = attention.key.weight.unflatten(0, (attention.num_heads, -1))
    weights = attention.head_weights if attention.head_weights is not None else torch.ones(attention.num_heads)
    rows = [torch.zeros(len(query), dtype=query.dtype)] if strict else []
    for token in range(len(rows), query.shape[1]):
        past = source[:, :token] if strict else source[:, : token + 1]
        scores = torch.einsum("bd,hde,bte->bht", query[:, token], maps, past)
        rows.append(-(torch.logsumexp(attention.beta * scores, -1) @ weights.to(scores)) / attention.beta)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("beta", nrgpt.BETAS)
@pytest.mark.parametrize("learn_head_weights", [False, True])
@pytest.mark.parametrize("mask", nrgpt.MASKS)
def test_attention_s_energy_is_its_definition_and_its_gradient_holds_the_keys_fixed(
    mask: str, learn_head_weights: bool, beta: str
) -> None:
    attention, strict = randomised(nrgpt.NRGPTAttention(12, 3, mask, beta, learn_head_weights)), mask == "strict"
    g = tokens(2, 9, 12).requires_grad_()
    gradient = attention.gradient(g)
    assert_exact(attention.energy(g), _attention_energy(attention, g, g, strict))
    assert_exact(gradient, own_gradient(lambda q: _attention_energy(attention, q, g.detach(), strict), g.detach()))
    # Under the strict mask no token is its own key; later tokens see it as one in any case.
    apart = (gradient - own_gradient(attention.energy, g.detach())).abs().max()
    assert apart < 1e-10 if strict else apart > 0.1
    (of_sum,) = torch.autograd.grad(attention.energy(g).sum(), g)
    assert (gradient - of_sum).abs().max() > 0.1


@pytest.mark.parametrize("kind", FEED_FORWARDS)
def test_feed_forward_gradient_is_that_of_its_energy(kind: type[nrgpt.FeedForwardEnergy]) -> None:
    feed_forward, g = randomised(kind(7, 19)), tokens(2, 9, 7)
    assert_exact(feed_forward.gradient(g), own_gradient(feed_forward.energy, g))


@pytest.mark.parametrize("kind", FEED_FORWARDS)
def test_derivatives_of_the_feed_forward_gradient(kind: type[nrgpt.FeedForwardEnergy]) -> None:
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


# Schedules of the rate.

SCHEDULED = ["full", "identity", "positive_scalar", "psd_skew"]


def _model(**options: Any) -> Any:
    return randomised(nrgpt.NRGPT_H_FF2W(**SIZES, **options))


@pytest.mark.parametrize("rate", SCHEDULED)
def test_each_step_takes_its_own_rate_and_steps_beyond_the_last_take_the_last(rate: str) -> None:
    c = [0.5, 2.0, 0.25]
    plain, scheduled = _model(inference_rate=rate), _model(inference_rate=rate, inference_rate_schedule=c)
    states = scheduled.trace(IDS, num_steps=5).states
    for index, used in enumerate([*c, c[-1], c[-1]]):
        x = states[index]
        assert_exact(states[index + 1], x + used * (plain.step(x) - x))
        assert_exact(states[index + 1], scheduled.step(x, index))
    assert_exact(scheduled.states(IDS), states[:4])


def test_a_learned_schedule_is_one_positive_parameter_a_step_with_a_gradient() -> None:
    model = _model(inference_rate_schedule="learned")
    assert model.log_step_rates.shape == (3,)
    model(IDS).square().sum().backward()
    assert bool((model.log_step_rates.grad != 0).all())
    fixed = _model(inference_rate_schedule=model.log_step_rates.exp().tolist())
    fixed.load_state_dict(model.state_dict(), strict=False)
    assert_exact(fixed(IDS), model(IDS))
