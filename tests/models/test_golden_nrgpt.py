"""The NRGPT models and their baselines against records of the authors' code, in $PAPER_REPRO_GOLDEN/nrgpt/*.npz.

Sizes, switches and weights come from each file, so another file put into the folder is checked too.  Without the folder
the tests are skipped.
"""

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.models import gpt
from paper_repro.models.nrgpt import model as nrgpt
from paper_repro.training.schedules import Cosine

VARIABLE = "PAPER_REPRO_GOLDEN"
ENERGY_MODELS = {
    "nrgpt_ff1": nrgpt.NRGPT_H_FF1,
    "nrgpt_ff2w": nrgpt.NRGPT_H_FF2W,
    "nrgpt_ff2": nrgpt.NRGPT_H_FF2,
}
RECURRENT_MODELS = {"rec_serial": gpt.RGPT, "rec_parallel": gpt.RGPTParallel}
RECIPES: dict[str, dict[str, Any]] = {
    "nano": {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1},
    "lops": {"lr": 1e-2, "betas": (0.9, 0.999), "weight_decay": 0.01},
}
SHELL = {
    "tok_emb": "token_embedding.weight",
    "pos_emb": "position_embedding.weight",
    "lnf_w": "final_norm.weight",
    "lnf_b": "final_norm.bias",
    "head_w": "output.weight",
    "head_b": "output.bias",
}
BLOCK = {
    "att_o_w": "attention.output.weight",
    "att_o_b": "attention.output.bias",
    "ff_w1": "feed_forward.up.weight",
    "ff_b1": "feed_forward.up.bias",
    "ff_w2": "feed_forward.down.weight",
    "ff_b2": "feed_forward.down.bias",
    "norm1_w": "attention_norm.weight",
    "norm1_b": "attention_norm.bias",
    "norm2_w": "feed_forward_norm.weight",
    "norm2_b": "feed_forward_norm.bias",
}
ENERGY_BLOCK = {
    "norm_w": "norm.weight",
    "norm_b": "norm.bias",
    "rate": "inference_rate.weight",
    "ff_scale": "feed_forward_scale",
}
FEED_FORWARD = {"nrgpt_ff1": ("up",), "nrgpt_ff2w": ("up", "down"), "nrgpt_ff2": ("inner", "up")}


@lru_cache(maxsize=4)
def _read(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        return {
            name: archive[name].item() if name.startswith("cfg_") else torch.from_numpy(archive[name])
            for name in archive.files
        }


def _files(kinds: Callable[[Path], bool]) -> Iterator[Any]:
    """One parameter for every file that fits, or one that is skipped with the reason."""
    folder = os.environ.get(VARIABLE)
    paths = sorted((Path(folder) / "nrgpt").glob("*.npz")) if folder else []
    fitting = [path for path in paths if kinds(path)]
    if not fitting:
        found = f"no such file in {folder}/nrgpt" if folder else f"set {VARIABLE} to the folder of golden records"
        yield pytest.param(None, id="absent", marks=pytest.mark.skip(found))
    for path in fitting:
        yield pytest.param(path, id=path.stem)


def _holds(*names: str) -> Callable[[Path], bool]:
    def check(path: Path) -> bool:
        with np.load(path, allow_pickle=False) as archive:
            return set(names) <= set(archive.files)

    return check


def _descends(path: Path) -> bool:
    """Recorded with a rate c * identity, for the check of the descent."""
    return "_eta" in path.stem and _holds("cfg_model", "w.rate")(path)


MODELS = list(_files(_holds("cfg_model")))
ENERGIES = list(_files(_holds("cfg_model", "out.E_att")))
BRANCHES = list(_files(_holds("cfg_model", "out.att")))
TRACES = list(_files(_holds("cfg_model", "out.trace_nano_loss", "out.trace_lops_loss")))
SCALAR_RATES = list(_files(_descends))
SCHEDULES = list(_files(_holds("iters", "cosine")))


def _sizes(record: dict[str, Any]) -> dict[str, int]:
    return {
        "vocabulary_size": record["cfg_vocab"],
        "block_length": record["cfg_block"],
        "width": record["cfg_n_embed"],
        "num_heads": record["cfg_n_head"],
        "hidden_factor": record["cfg_hid_factor"],
    }


def _build(record: dict[str, Any], inference_rate: str = "full") -> gpt.PositionalLanguageModel:
    """The model of the record, with its weights but for those of a rate that has none of its own, in float64."""
    kind, num_steps, model = record["cfg_model"], record["cfg_n_layer"], None
    if kind in ENERGY_MODELS:
        mask = "strict" if record["cfg_strict_mask"] else "inclusive"
        model = ENERGY_MODELS[kind](**_sizes(record), num_steps=num_steps, mask=mask, inference_rate=inference_rate)
    elif kind in RECURRENT_MODELS:
        model = RECURRENT_MODELS[kind](**_sizes(record), num_steps=num_steps)
    else:
        assert kind == "gpt", f"the record holds an unknown model {kind!r}"
        model = gpt.GPT(**_sizes(record), num_layers=num_steps)
    model = model.double()
    values = {name: record[f"w.{theirs}"] for name, theirs in _translated(record, "w.", model).items()}
    if inference_rate == "positive_scalar":
        values["inference_rate.log_c"] = record["w.rate"][0, :1].log()
    model.load_state_dict(values | _fused(record, "w.", model), strict=True)
    return model


def _translated(record: dict[str, Any], prefix: str, model: torch.nn.Module) -> dict[str, str]:
    """Our name of every weight in the record that is kept as it is -> theirs, without ``prefix``."""
    ours, found = set(model.state_dict()), {}
    for theirs in (name.removeprefix(prefix) for name in record if name.startswith(prefix)):
        layer, _, last = theirs.rpartition(".")
        place = f"blocks.{layer.removeprefix('layer')}." if layer else "block."
        if record["cfg_model"] in ENERGY_MODELS:
            names = {**SHELL, **ENERGY_BLOCK}
            for index, module in enumerate(FEED_FORWARD[record["cfg_model"]], start=1):
                names |= {f"ff_{kind[0]}{index}": f"feed_forward.{module}.{kind}" for kind in ("weight", "bias")}
        else:
            names = {**SHELL, **{theirs: place + ours for theirs, ours in BLOCK.items()}}
        if names.get(last) in ours:
            found[names[last]] = theirs
    return found


def _fused(record: dict[str, Any], prefix: str, model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights that we keep in one matrix: J of all heads; queries, keys and values of all heads."""
    found = {}
    for name in model.state_dict():
        if name == "attention.key.weight":
            found[name] = record[f"{prefix}att_J"].flatten(0, 1)
        if name.endswith("query_key_value.weight"):
            place = f"{prefix}layer{name.split('.')[1]}." if name.startswith("blocks.") else prefix
            found[name] = torch.cat([record[f"{place}att_{letter}"].flatten(0, 1) for letter in "qkv"])
    return found


def _assert_golden(found: Tensor, expected: Tensor) -> None:
    """1e-9 of each number, or of the largest where one is a difference of larger ones."""
    torch.testing.assert_close(found.detach(), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def _loss(model: gpt.PositionalLanguageModel, record: dict[str, Any]) -> Tensor:
    return functional.cross_entropy(model(record["in.ids"]).flatten(0, 1), record["in.targets"].flatten())


@pytest.mark.parametrize("path", MODELS)
def test_golden_nrgpt_states_logits_and_loss(path: Path) -> None:
    record = _read(path)
    model = _build(record)
    _assert_golden(model.states(record["in.ids"]), record["out.states"])
    _assert_golden(model(record["in.ids"]), record["out.logits"])
    _assert_golden(_loss(model, record), record["out.loss"])


@pytest.mark.parametrize("path", MODELS)
def test_golden_nrgpt_weight_gradients(path: Path) -> None:
    record = _read(path)
    model = _build(record)
    _loss(model, record).backward()
    expected = {ours: record[f"g.{theirs}"] for ours, theirs in _translated(record, "g.", model).items()}
    expected |= _fused(record, "g.", model)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained.keys() == expected.keys()
    for name, parameter in trained.items():
        assert parameter.grad is not None
        _assert_golden(parameter.grad, expected[name])


@pytest.mark.parametrize("path", ENERGIES)
def test_golden_nrgpt_energies_and_their_gradients(path: Path) -> None:
    record = _read(path)
    model = _build(record)
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
    record = _read(path)
    model = _build(record, "identity" if record["w.rate"][0, 0] == 1 else "positive_scalar")
    assert isinstance(model, nrgpt.NRGPT)
    trace = model.trace(record["in.ids"])
    _assert_golden(trace.states, record["out.states"])
    assert trace.energies.total.diff(dim=0).max() < 0


@pytest.mark.parametrize("path", BRANCHES)
def test_golden_nrgpt_attention_branch_of_the_baselines(path: Path) -> None:
    record = _read(path)
    model = _build(record)
    for layer, state, expected in zip(model.layers(), record["out.states"][:-1], record["out.att"], strict=True):
        assert isinstance(layer, gpt.SerialBlock)
        _assert_golden(layer.attention(layer.attention_norm(state)), expected)


@pytest.mark.parametrize("path", MODELS)
def test_golden_nrgpt_greedy_continuation(path: Path) -> None:
    record = _read(path)
    expected, model = record["out.greedy"], _build(record)
    prompt = expected[:, :3]
    assert torch.equal(prompt, record["in.ids"][:, :3])
    assert expected.shape[1] > model.block_length  # the context is cropped on the way
    assert torch.equal(model.generate(prompt, expected.shape[1] - 3, temperature=0), expected)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("path", TRACES)
def test_golden_nrgpt_training_steps(path: Path, recipe: str) -> None:
    """Losses before each AdamW step and after the last, and gradient norms before clipping."""
    record = _read(path)
    model = _build(record)
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
    record = _read(path)
    steps, highest = int(record["decay_iters"]), float(record["lr_max"])
    schedule = Cosine(float(record["warmup"]) / steps, float(record["lr_min"]) / highest)
    found = [highest * schedule.factor(min(int(step), steps), steps) for step in record["iters"]]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), record["cosine"], rtol=1e-9, atol=0)
