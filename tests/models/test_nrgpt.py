import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from paper_repro.kernels.preferences import prefer
from paper_repro.models import nrgpt
from paper_repro.models import nrgpt as nrgpt_energy
from paper_repro.tests.support.float64 import assert_exact, own_gradient, randomised, tokens

SIZES = {"vocabulary_size": 11, "block_length": 9, "width": 6, "num_heads": 2, "num_steps": 3}
MODELS = [nrgpt.NRGPT_H_FF1, nrgpt.NRGPT_H_FF2W, nrgpt.NRGPT_H_FF2]
FITTING = [
    (norm, rate)
    for norm in nrgpt.NORMS
    for rate in nrgpt.INFERENCE_RATES
    if rate != "norm_scale" or norm in nrgpt.WITH_LEARNABLE_SCALE
]
OWT = {"vocabulary_size": 50304, "block_length": 1024, "num_steps": 12, "num_heads": 12}
SHAKESPEARE = {"vocabulary_size": 65, "block_length": 256, "num_steps": 8}
LISTOPS = {"block_length": 128, "num_heads": 1, "num_steps": 5}


def _ids(model: nrgpt.NRGPT, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(model.vocabulary_size, (batch, model.block_length), generator=generator)


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


def test_only_the_default_norm_freezes_its_scale() -> None:
    learnable = {
        kind: {name for name, p in nrgpt.NRGPT_H_FF1(**SIZES, norm=kind).norm.named_parameters() if p.requires_grad}
        for kind in nrgpt.NORMS
    }
    assert learnable == {
        "frozen_layer_norm": {"bias"},
        "layer_norm": {"weight", "bias"},
        "rms_norm": {"weight"},
        "none": set(),
    }
    assert torch.equal(nrgpt.NRGPT_H_FF1(**SIZES).norm.weight, torch.ones(6))


def _rate_matrix(model: nrgpt.NRGPT) -> Tensor:
    weights = dict(model.inference_rate.named_parameters())
    if "weight" in weights:
        return weights["weight"]
    if "root" in weights:
        return weights["root"].T @ weights["root"] + weights["skew"] - weights["skew"].T
    c = weights["log_c"].exp() if weights else torch.ones(1, dtype=torch.float64)
    scale = model.norm.weight if isinstance(model.inference_rate, nrgpt.NormScaleRate) else torch.ones(6)
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


@pytest.mark.parametrize(("norm", "rate"), FITTING)
def test_every_trained_parameter_gets_a_gradient(norm: str, rate: str) -> None:
    model = randomised(nrgpt.NRGPT_H_FF2W(**SIZES, norm=norm, inference_rate=rate, learn_head_weights=True), 0.1)
    model(_ids(model)).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) is parameter.requires_grad, name


def test_rates_start_as_they_say() -> None:
    for rate in ("identity", "positive_scalar", "norm_scale"):
        model = nrgpt.NRGPT_H_FF1(**SIZES, norm="layer_norm", inference_rate=rate).double()
        assert_exact(_rate_matrix(model), torch.eye(6, dtype=torch.float64))
    assert nrgpt.PsdSkewRate(6, 2).root.shape == (2, 6)


def test_the_symmetric_part_of_psd_skew_is_positive_semi_definite() -> None:
    for rank in (2, 6, 9):
        rate = randomised(nrgpt.PsdSkewRate(6, rank), 2.0).coefficient(None)
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
    total = model.trace(_ids(model), num_steps=20).energies.total
    assert total[:, :, 0].diff(dim=0).max() < 0


@pytest.mark.parametrize("mask", nrgpt_energy.MASKS)
@pytest.mark.parametrize("make", MODELS)
def test_no_logit_sees_a_later_token(make: type[nrgpt.NRGPT], mask: str) -> None:
    model = randomised(make(**SIZES, mask=mask), 0.2)
    ids = _ids(model)
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
    model(_ids(model)[:, :1]).sum().backward()


def test_trace_goes_on_where_the_trained_steps_end() -> None:
    torch.manual_seed(1)
    model = randomised(nrgpt.NRGPT_H_FF2W(**SIZES), 0.1)
    ids = _ids(model)
    trace = model.trace(ids, num_steps=5)
    assert_exact(trace.states[:4], model.states(ids))
    assert_exact(model.logits(trace.states[3]), model(ids))
    assert trace.states.shape == (6, 2, 9, 6)
    for index, x in enumerate(trace.states):
        for found, expected in zip(trace.energies, model.energies(x), strict=True):
            assert_exact(found[index], expected)


class _LargestSquare(TorchDispatchMode):
    """Whether an operation returned scores, (..., N, N) with N of 32 or more, or was given a mask of that size."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        results = out if isinstance(out, (tuple, list)) else [out]
        for value in (*args, *(kwargs or {}).values(), *results):
            if isinstance(value, Tensor) and value.ndim >= 2 and value.shape[-1] == value.shape[-2] >= 32:
                self.found.append(f"{func}: {tuple(value.shape)}")
        return out


@pytest.mark.parametrize("mask", nrgpt_energy.MASKS)
def test_forward_and_backward_make_no_mask_and_no_scores(mask: str) -> None:
    model = nrgpt.NRGPT_H_FF1(11, 40, 6, 2, num_steps=2, mask=mask)
    ids = torch.randint(11, (2, 40))
    with _LargestSquare() as seen:
        model(ids).sum().backward()
    assert seen.found == []
    with _LargestSquare() as seen:
        model.attention.energy(torch.randn(2, 40, 6))
    assert seen.found  # the measurement does, so the check sees them


@pytest.mark.parametrize("make", MODELS)
def test_forward_needs_no_autograd(make: type[nrgpt.NRGPT]) -> None:
    model = randomised(make(**SIZES))
    with torch.inference_mode():
        inferred = model(_ids(model))
    # Without a gradient to prepare, the feed-forward part is computed another way: the definition.
    assert_exact(inferred, model(_ids(model)))


@pytest.mark.parametrize("rate", nrgpt.INFERENCE_RATES)
def test_recomputed_steps_give_the_same_gradients(rate: str) -> None:
    model = randomised(nrgpt.NRGPT_H_FF2W(**SIZES, norm="layer_norm", inference_rate=rate, dropout=0.3), 0.1)
    gradients = []
    for recompute in (False, True):
        model.zero_grad()
        torch.manual_seed(6)
        with prefer(recompute=recompute):
            model(_ids(model)).square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for kept, recomputed in zip(*gradients, strict=True):
        assert_exact(recomputed, kept)


def test_recomputed_steps_keep_nothing_but_their_states() -> None:
    kept = {}
    for recompute in (False, True):
        model = nrgpt.NRGPT_H_FF1(**SIZES)
        sizes: list[int] = []
        with (
            prefer(recompute=recompute),
            torch.autograd.graph.saved_tensors_hooks(lambda x, to=sizes: to.append(x.numel()) or x, lambda x: x),
        ):
            model(_ids(model))
        hidden = 4 * model.width * _ids(model).numel()
        kept[recompute] = sum(size == hidden for size in sizes)
    assert kept[False] >= model.num_steps and kept[True] == 0


def test_dropout_acts_in_training_only_and_never_on_energies() -> None:
    model = randomised(nrgpt.NRGPT_H_FF1(**SIZES, dropout=0.5))
    x = tokens(2, 9, 6)
    assert not torch.equal(model.gradients(x).attention, model.gradients(x).attention)
    assert torch.equal(model.gradients(x).feed_forward, model.gradients(x).feed_forward)
    assert torch.equal(model.energies(x).total, model.energies(x).total)
    model.eval()
    assert_exact(model.gradients(x).attention, own_gradient(model.attention.energy, model.norm(x).detach()))


@pytest.mark.parametrize("make", MODELS)
def test_bfloat16_autocast_stays_close(make: type[nrgpt.NRGPT]) -> None:
    torch.manual_seed(0)
    model = make(11, 33, 24, 2, num_steps=3)
    ids = _ids(model)
    exact = model(ids)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(ids)
        functional.cross_entropy(rounded.flatten(0, 1), ids.flatten()).backward()
    # bfloat16 keeps 8 bits, 0.4 %, of each of the values that are multiplied.
    assert (rounded.float() - exact).norm() < 1e-2 * exact.norm()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_stack_of_models_under_vmap_equals_one_after_the_other() -> None:
    models = [randomised(nrgpt.NRGPT_H_FF2W(**SIZES, norm="layer_norm", inference_rate="norm_scale"), 0.1)]
    models.append(randomised(nrgpt.NRGPT_H_FF2W(**SIZES, norm="layer_norm", inference_rate="norm_scale"), 0.2))
    parameters, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]
    ids = _ids(models[0])

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(models[0], (weights, {}), (ids,)).square().mean()

    assert not buffers
    gradients = torch.func.vmap(torch.func.grad(loss))(parameters)
    for index, model in enumerate(models):
        model.zero_grad()
        model(ids).square().mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert_exact(gradients[name][index], parameter.grad)


@pytest.mark.parametrize(
    ("model", "options", "total"),
    [
        (nrgpt.NRGPT_H_FF2W, {**OWT, "width": 768}, 90_496_897),
        (nrgpt.NRGPT_H_FF2W, {**OWT, "width": 768, "tie_output": True}, 51_863_425),
        (nrgpt.NRGPT_H_FF2W, {**OWT, "width": 768, "num_heads": 1}, 84_008_833),
        (nrgpt.NRGPT_H_FF1, {**OWT, "width": 768}, 88_136_833),
        (nrgpt.NRGPT_H_FF2W, {**OWT, "width": 1536}, 205_716_097),
        (nrgpt.NRGPT_H_FF2W, {**OWT, "width": 1536, "tie_output": True}, 128_449_153),
        (nrgpt.NRGPT_H_FF1, {**SHAKESPEARE, "width": 512, "num_heads": 2}, 2_036_802),
        (nrgpt.NRGPT_H_FF1, {**SHAKESPEARE, "width": 512, "num_heads": 2, "hidden_factor": 8}, 3_087_426),
        (nrgpt.NRGPT_H_FF1, {**SHAKESPEARE, "width": 512, "num_heads": 2, "tie_output": True}, 2_003_522),
        (nrgpt.NRGPT_H_FF2W, {**SHAKESPEARE, "width": 128, "num_heads": 1}, 214_466),
        (nrgpt.NRGPT_H_FF2W, {**SHAKESPEARE, "width": 128, "num_heads": 1, "tie_output": True}, 206_146),
        (nrgpt.NRGPT_H_FF1, {**LISTOPS, "vocabulary_size": 30, "width": 40}, 17_471),
        (nrgpt.NRGPT_H_FF1, {**LISTOPS, "vocabulary_size": 30, "width": 50}, 24_831),
        (nrgpt.NRGPT_H_FF1, {**LISTOPS, "vocabulary_size": 30, "width": 40, "hidden_factor": 8}, 24_031),
        (nrgpt.NRGPT_H_FF2W, {**LISTOPS, "vocabulary_size": 30, "width": 40}, 23_911),
        (nrgpt.NRGPT_H_FF2W, {**LISTOPS, "vocabulary_size": 30, "width": 50}, 34_881),
    ],
)
def test_parameter_counts(model: type[nrgpt.NRGPT], options: dict[str, Any], total: int) -> None:
    """Untied totals hold the frozen scale, D numbers that are not trained."""
    with torch.device("meta"):
        parameters = list(model(**options).parameters())
    assert sum(parameter.numel() for parameter in parameters) == total
    assert sum(parameter.numel() for parameter in parameters if not parameter.requires_grad) == options["width"]


@pytest.mark.parametrize(
    ("model", "hidden_factor", "counts"),
    [
        (nrgpt.NRGPT_H_FF1, 4, (4373, 5941, 8171, 11797, 16661, 23821, 35861, 52501)),
        (nrgpt.NRGPT_H_FF1, 8, (5461, 7621, 10771, 16021, 23221, 34021, 52501, 78421)),
        (nrgpt.NRGPT_H_FF2W, 4, (5413, 7561, 10696, 15925, 23101, 33871, 52309, 78181)),
    ],
)
def test_parameter_counts_on_listops(model: type[nrgpt.NRGPT], hidden_factor: int, counts: tuple[int, ...]) -> None:
    found = []
    with torch.device("meta"):
        for width in (16, 20, 25, 32, 40, 50, 64, 80):
            built = model(vocabulary_size=20, width=width, hidden_factor=hidden_factor, **LISTOPS)
            found.append(sum(parameter.numel() for parameter in built.parameters()))
    assert tuple(found) == counts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 4}, "num_heads must divide the width 6"),
        ({"mask": "causal"}, "mask must be one of strict, inclusive"),
        ({"beta": "half"}, "beta must be one of one, inverse_root_head_width"),
        ({"norm": "rmsnorm"}, "norm must be one of .* rms_norm"),
        ({"inference_rate": "pos_scalar"}, "inference_rate must be one of .*positive_scalar"),
        ({"inference_rate": "norm_scale"}, "choose norm='layer_norm' or norm='rms_norm'"),
        ({"inference_rate": "norm_scale", "norm": "none"}, "needs gamma"),
        ({"rate_rank": 3}, "rate_rank=3 has no effect with inference_rate='full'"),
        ({"inference_rate": "psd_skew", "rate_rank": 0}, "rate_rank must be a whole number"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\)"),
        ({"hidden_factor": 0}, "hidden_factor"),
        ({"num_steps": 0}, "num_steps"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nrgpt.NRGPT_H_FF1(**{**SIZES, **options})


def test_a_model_without_a_feed_forward_energy_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"FeedForwardEnergy must define gradient\(g\)"):
        nrgpt.NRGPT(**SIZES)(torch.zeros(1, 2, dtype=torch.long))
