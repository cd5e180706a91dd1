from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.preferences import prefer
from paper_repro.models import gpt, nrgpt
from paper_repro.models.nrgpt import NRGPT, NRGPTAttention, attention_bounds, feed_forward_bound, radius
from paper_repro.tests.support import golden, golden_nrgpt
from paper_repro.tests.support.float64 import assert_exact, own_gradient, randomised, states, tokens
from paper_repro.tests.support.golden import assert_golden

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
def test_the_update_is_minus_the_rate_times_the_gradient_of_the_energy(make, norm, rate):
    model = randomised(make(**SIZES, norm=norm, inference_rate=rate))
    x = tokens(2, 9, 6)

    def total(g: Tensor) -> Tensor:
        return model.attention.energy(g) + model.feed_forward_scale * model.feed_forward.energy(g)

    assert_exact(model.energies(x).total, total(model.norm(x)))
    expected = -own_gradient(total, model.norm(x).detach()) @ _rate_matrix(model).mT
    torch.testing.assert_close(model.layers()[0](x) - x, expected, rtol=1e-10, atol=1e-10)


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


def test_a_lone_token_has_no_attention_energy_under_the_strict_mask() -> None:
    model, x = randomised(nrgpt.NRGPT_H_FF1(**SIZES)), tokens(2, 1, 6)
    assert model.energies(x).attention.tolist() == [[0.0], [0.0]] and not model.gradients(x).attention.any()
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
def test_attention_s_energy_is_its_definition_and_its_gradient_holds_the_keys_fixed(mask, learn_head_weights, beta):
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


def test_a_model_makes_as_many_steps_as_it_is_told() -> None:
    model = randomised(nrgpt.NRGPT_H_FF2W(**SIZES))
    traced = model.trace(IDS, num_steps=5).states
    assert_exact(traced[4], model.layers()[0](traced[3]))
    assert_exact(traced[:4], states(model, IDS))
    model.set_inner_steps(5)
    assert_exact(states(model, IDS), traced)


RECIPES: dict[str, dict[str, Any]] = {
    "nano": {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1},
    "lops": {"lr": 1e-2, "betas": (0.9, 0.999), "weight_decay": 0.01},
}
RECORDS = golden.files("nrgpt", "*.npz", "cfg_model")
ENERGIES = golden.files("nrgpt", "*.npz", "cfg_model", "out.E_att")
TRACES = golden.files("nrgpt", "*.npz", "cfg_model", "out.trace_nano_loss", "out.trace_lops_loss")


def _loss(model: gpt.PositionalLanguageModel, record: dict[str, Any]) -> Tensor:
    return functional.cross_entropy(model(record["in.ids"]).flatten(0, 1), record["in.targets"].flatten())


@pytest.mark.parametrize("path", RECORDS)
def test_golden_nrgpt_states_logits_loss_and_gradients(path: Path) -> None:
    record = golden.read(path)
    model = golden_nrgpt.build(record)
    assert_golden(states(model, record["in.ids"]), record["out.states"])
    assert_golden(model(record["in.ids"]), record["out.logits"])
    loss = _loss(model, record)
    assert_golden(loss, record["out.loss"])
    loss.backward()
    expected = {ours: record[f"g.{theirs}"] for ours, theirs in golden_nrgpt.translated(record, "g.", model).items()}
    expected |= golden_nrgpt.fused(record, "g.", model)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained.keys() == expected.keys()
    for name, parameter in trained.items():
        assert parameter.grad is not None
        assert_golden(parameter.grad, expected[name])


@pytest.mark.parametrize("path", ENERGIES)
def test_golden_nrgpt_energies_and_their_gradients(path: Path) -> None:
    record = golden.read(path)
    model = golden_nrgpt.build(record)
    assert isinstance(model, nrgpt.NRGPT)
    for index, state in enumerate(record["out.states"]):
        energies, gradients = model.energies(state), model.gradients(state)
        assert_golden(energies.attention, record["out.E_att"][index])
        assert_golden(energies.feed_forward, record["out.E_ff"][index])
        assert_golden(gradients.attention, record["out.dE_att"][index])
        assert_golden(gradients.feed_forward, record["out.dE_ff"][index])
    trace = model.trace(record["in.ids"])
    total = record["out.E_att"] + record["w.ff_scale"] * record["out.E_ff"]
    assert_golden(trace.states, record["out.states"])
    assert_golden(trace.energies.total, total)


@pytest.mark.parametrize("path", RECORDS)
def test_golden_nrgpt_greedy_continuation(path: Path) -> None:
    record = golden.read(path)
    expected, model = record["out.greedy"], golden_nrgpt.build(record)
    prompt = expected[:, :3]
    assert torch.equal(prompt, record["in.ids"][:, :3])
    assert expected.shape[1] > model.block_length  # the context is cropped on the way
    assert torch.equal(model.generate(prompt, expected.shape[1] - 3, temperature=0), expected)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("path", TRACES)
def test_golden_nrgpt_training_steps(path: Path, recipe: str) -> None:
    """Losses before each AdamW step and after the last, and gradient norms before clipping."""
    record = golden.read(path)
    model = golden_nrgpt.build(record)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    options = RECIPES[recipe]
    matrices, vectors = ([p for p in trained if (p.ndim >= 2) is wide] for wide in (True, False))
    decay = options["weight_decay"] if recipe == "lops" else 0.0
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": decay}], **options)
    losses, norms = [], []
    for _ in range(len(record[f"out.trace_{recipe}_gradnorm"])):
        optimizer.zero_grad()
        loss = _loss(model, record)
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 1.0))
        optimizer.step()
    losses.append(_loss(model, record).detach())
    for found, expected in ((losses, "loss"), (norms, "gradnorm")):
        torch.testing.assert_close(torch.stack(found), record[f"out.trace_{recipe}_{expected}"], rtol=1e-9, atol=0)


WIDTH, TOKENS = 12, 7
ROUNDING = 1e-10
"""Relative, of sums over some ten terms in float64."""


def along_what_is_stretched_most(model: NRGPT) -> Tensor:
    """States along the directions that the weights stretch most, and random ones, (B, T, D)."""
    maps = [model.attention.key.weight, *model.feed_forward.parameters()]
    maps = [weight.reshape(-1, WIDTH) for weight in maps if weight.shape[-1] == WIDTH]
    directions = [torch.linalg.svd(weight, full_matrices=False)[2][0] for weight in maps]
    aligned = [sign * direction.expand(1, TOKENS, WIDTH) for direction in directions for sign in (1, -1)]
    return torch.cat([tokens(6, TOKENS, WIDTH), *aligned])


@pytest.mark.parametrize("norm", ["frozen_layer_norm", "layer_norm", "rms_norm"])
@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_no_state_breaks_a_bound(kind: type[NRGPT], norm: str) -> None:
    sizes = {"vocabulary_size": 5, "block_length": TOKENS, "width": WIDTH, "num_heads": 3, "num_steps": 2}
    for mask in nrgpt.MASKS:
        model = randomised(kind(**sizes, norm=norm, mask=mask, learn_head_weights=True))
        x, r = along_what_is_stretched_most(model), radius(model)
        low, high = attention_bounds(model.attention, r, TOKENS)
        for scale in (1e-6, 1.0, 1e6):
            energies = model.energies(scale * x)
            assert bool((energies.attention >= low - ROUNDING * (1 + low.abs())).all())
            assert bool((energies.attention <= high + ROUNDING * (1 + high.abs())).all())
            assert 0 < energies.feed_forward.abs().max() <= feed_forward_bound(model.feed_forward, r) * (1 + ROUNDING)


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
