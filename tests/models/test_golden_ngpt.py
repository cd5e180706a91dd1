"""nGPT and its baseline against records of the authors' code; skipped without $PAPER_REPRO_GOLDEN."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from paper_repro.probes.inspection import branches
from paper_repro.tests.support import golden, golden_ngpt

FILES = golden.files("ngpt", "*.npz")


@pytest.mark.parametrize("path", FILES)
def test_golden_ngpt_states_logits_and_loss(path: Path) -> None:
    record = golden.read(path)
    model = golden_ngpt.build(record)
    expected = torch.stack([record[f"act/hidden.{layer}"] for layer in range(record["meta"]["layers"] + 1)])
    torch.testing.assert_close(model.states(record["idx"]), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(model(record["idx"]), record["logits"], rtol=0, atol=1e-10)
    torch.testing.assert_close(golden_ngpt.loss(model, record), record["loss"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("path", FILES)
def test_golden_ngpt_inside_the_first_layer(path: Path) -> None:
    record = golden.read(path)
    model = golden_ngpt.build(record)
    seen: dict[str, Tensor] = {}
    (attention, feed_forward), *_ = branches(model)
    watched = {"output": attention.output, "down": feed_forward.down, "qkv": attention.query_key_value}
    # The product itself may be computed with the scales folded in: its input, times the matrix, is what is compared.
    feed_forward.register_forward_pre_hook(lambda part, read: seen.update(up=part.up(read[0])))
    for name, part in watched.items():
        part.register_forward_hook(lambda _, __, found, name=name: seen.update({name: found}))
    model(record["idx"])
    linear = torch.cat([record[f"act/layer0.{letter}_lin"] for letter in "qkv"], -1)
    pairs = {"qkv": linear, "output": "attn_out", "up": "mlp_in", "down": "mlp_out"}
    for name, expected in pairs.items():
        value = record[f"act/layer0.{expected}"] if isinstance(expected, str) else expected
        torch.testing.assert_close(seen[name], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("path", FILES)
def test_golden_ngpt_gradients(path: Path) -> None:
    record = golden.read(path)
    model = golden_ngpt.build(record)
    golden_ngpt.loss(model, record).backward()
    expected = golden_ngpt.ours(record, "grad")
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-10)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.testing.assert_close(norm, record["grad_norm"], rtol=0, atol=1e-10)
