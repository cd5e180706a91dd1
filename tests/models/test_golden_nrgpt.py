"""The NRGPT models and their baselines against records of the authors' code; skipped without $PAPER_REPRO_GOLDEN."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.models import gpt, nrgpt
from paper_repro.tests.support import golden, golden_nrgpt
from paper_repro.training.schedules import Cosine

RECIPES: dict[str, dict[str, Any]] = {
    "nano": {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1},
    "lops": {"lr": 1e-2, "betas": (0.9, 0.999), "weight_decay": 0.01},
}
MODELS = golden.files("nrgpt", "*.npz", "cfg_model")
ENERGIES = golden.files("nrgpt", "*.npz", "cfg_model", "out.E_att")
BRANCHES = golden.files("nrgpt", "*.npz", "cfg_model", "out.att")
TRACES = golden.files("nrgpt", "*.npz", "cfg_model", "out.trace_nano_loss", "out.trace_lops_loss")
SCALAR_RATES = golden.files("nrgpt", "*_eta*.npz", "cfg_model", "w.rate")
"""Recorded with a rate c * identity, for the check of the descent."""
SCHEDULES = golden.files("nrgpt", "*.npz", "iters", "cosine")


def _assert_golden(found: Tensor, expected: Tensor) -> None:
    """1e-9 of each number, or of the largest where one is a difference of larger ones."""
    torch.testing.assert_close(found.detach(), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def _loss(model: gpt.PositionalLanguageModel, record: dict[str, Any]) -> Tensor:
    return functional.cross_entropy(model(record["in.ids"]).flatten(0, 1), record["in.targets"].flatten())


@pytest.mark.parametrize("path", MODELS)
def test_golden_nrgpt_states_logits_and_loss(path: Path) -> None:
    record = golden.read(path)
    model = golden_nrgpt.build(record)
    _assert_golden(model.states(record["in.ids"]), record["out.states"])
    _assert_golden(model(record["in.ids"]), record["out.logits"])
    _assert_golden(_loss(model, record), record["out.loss"])


@pytest.mark.parametrize("path", MODELS)
def test_golden_nrgpt_weight_gradients(path: Path) -> None:
    record = golden.read(path)
    model = golden_nrgpt.build(record)
    _loss(model, record).backward()
    expected = {ours: record[f"g.{theirs}"] for ours, theirs in golden_nrgpt.translated(record, "g.", model).items()}
    expected |= golden_nrgpt.fused(record, "g.", model)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained.keys() == expected.keys()
    for name, parameter in trained.items():
        assert parameter.grad is not None
        _assert_golden(parameter.grad, expected[name])


@pytest.mark.parametrize("path", ENERGIES)
def test_golden_nrgpt_energies_and_their_gradients(path: Path) -> None:
    record = golden.read(path)
    model = golden_nrgpt.build(record)
    assert isinstance(model, nrgpt.NRGPT)
    for index, state in enumerate(record["out.states"]):
        energies, gradients = model.energies(state), model.gradients(state)
        _assert_golden(energies.attention, record["out.E_att"][index])
        _assert_golden(energies.feed_forward, record["out.E_ff"][index])
        _assert_golden(gradients.attention, record["out.dE_att"][index])
        _assert_golden(gradients.feed_forward, record["out.dE_ff"][index])
    trace = model.trace(record["in.ids"])
    total = record["out.E_att"] + record["w.ff_scale"] * record["out.E_ff"]
    _assert_golden(trace.states, record["out.states"])
    _assert_golden(trace.energies.total, total)


@pytest.mark.parametrize("path", SCALAR_RATES)
def test_golden_nrgpt_with_a_multiple_of_the_identity_as_rate_descends(path: Path) -> None:
    record = golden.read(path)
    model = golden_nrgpt.build(record, "identity" if record["w.rate"][0, 0] == 1 else "positive_scalar")
    assert isinstance(model, nrgpt.NRGPT)
    trace = model.trace(record["in.ids"])
    _assert_golden(trace.states, record["out.states"])
    assert trace.energies.total.diff(dim=0).max() < 0


@pytest.mark.parametrize("path", BRANCHES)
def test_golden_nrgpt_attention_branch_of_the_baselines(path: Path) -> None:
    record = golden.read(path)
    model = golden_nrgpt.build(record)
    for layer, state, expected in zip(model.layers(), record["out.states"][:-1], record["out.att"], strict=True):
        assert isinstance(layer, gpt.SerialBlock)
        _assert_golden(layer.attention(layer.attention_norm(state)), expected)


@pytest.mark.parametrize("path", MODELS)
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


@pytest.mark.parametrize("path", SCHEDULES)
def test_golden_nrgpt_cosine_schedule(path: Path) -> None:
    record = golden.read(path)
    steps, highest = int(record["decay_iters"]), float(record["lr_max"])
    schedule = Cosine(float(record["warmup"]) / steps, float(record["lr_min"]) / highest)
    found = [highest * schedule.factor(min(int(step), steps), steps) for step in record["iters"]]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), record["cosine"], rtol=1e-9, atol=0)
