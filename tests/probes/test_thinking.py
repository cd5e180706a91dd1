import csv
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn import functional

from paper_repro.base.identity import IGNORED, mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.documents import DocumentData
from paper_repro.models.ebt import think
from paper_repro.probes import thinking
from paper_repro.probes.thinking import EnergyUncertainty, Thinking, scored_batches
from paper_repro.tests.support.ebt_language import documents, ebt_module, transformer_module

pytestmark = pytest.mark.usefixtures("without_gradients")
SETS = ("validation", "dyck-generated")
PROBE = Thinking(SETS, steps=(1, 2, 4), samples=(1, 3), num_texts=6)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinking, "BATCH_SIZE", 4)
    monkeypatch.setattr(thinking, "NUM_TOKENS", 5)


@pytest.fixture
def data(tmp_path: Path) -> DocumentData:
    return documents(tmp_path)


@pytest.fixture
def double() -> Iterator[None]:
    """Four steps enlarge a rounding error of float32 by more than a hundred, on some processors."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def by_hand(module: Any, data: DocumentData, name: str, steps: int, samples: int, most: int) -> float:
    """Each number of steps and samples by itself; of every token the prediction of lowest energy."""
    generator = torch.Generator().manual_seed(mix(0, "thinking", name))
    total, count = 0.0, 0
    for ids, following in scored_batches(data, name, 6, 4):
        start = torch.randn((most, *ids.shape, module.model.vocabulary_size), generator=generator)
        *_, last = think(module.model, ids, start[:samples], steps, module.thinking)
        logits = last.choose()[0]
        total += float(functional.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="sum"))
        count += int((following != IGNORED).sum())
    return total / count


def grid_of(found: Findings) -> dict[tuple[str, int, int], dict[str, str]]:
    rows = csv.DictReader(io.StringIO(found.attachments["thinking.csv"].decode()))
    return {(row["set"], int(row["steps"]), int(row["samples"])): row for row in rows}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("landscapes", "rule"), [(1, "code"), (2, "code"), (1, "listing")])
def test_every_loss_is_that_of_thinking_so_long_with_so_many(data: DocumentData, landscapes: int, rule: str) -> None:
    module = ebt_module(landscapes, num_steps=2, rule=rule)
    found = PROBE.measure(module, data, 0)
    steps, grid = [number for number in (1, 2, 4) if number >= landscapes], grid_of(found)
    assert set(grid) == {(name, number, samples) for name in SETS for number in steps for samples in (1, 3)}
    for (name, number, samples), row in grid.items():
        expected = by_hand(module, data, name, number, samples, 3)
        assert float(row["loss"]) == pytest.approx(expected, rel=1e-5)
        assert float(row["oracle"]) < float(grid[name, number, 1]["loss"])
    for name in SETS:
        places = {"loss": (2, 1), "first_loss": (steps[0], 1), "longer_loss": (4, 1), "best_loss": (4, 3)}
        for kind, place in places.items():
            assert found.metrics[f"{name}_{kind}"] == pytest.approx(float(grid[name, *place]["loss"]), rel=1e-7)
    assert len(found.metrics) == len(SETS) * 4


def test_a_transformer_is_scored_once_and_a_recurrent_one_for_each_number_of_passes(data: DocumentData) -> None:
    plain = transformer_module()
    found = PROBE.measure(plain, data, 0)
    assert set(found.metrics) == {f"{name}_loss" for name in SETS} and grid_of(found) == {}
    (ids, following), *_ = scored_batches(data, "validation", 4, 4)
    one = Thinking(("validation",), num_texts=4).measure(plain, data, 0).metrics["validation_loss"]
    assert one == pytest.approx(float(plain.loss((ids, following))), rel=1e-6)
    recurrent = PROBE.measure(transformer_module(num_passes=2), data, 0)
    grid = grid_of(recurrent)
    assert set(grid) == {(name, passes, 1) for name in SETS for passes in (1, 2, 4)}
    for name in SETS:
        assert float(grid[name, 1, 1]["loss"]) == pytest.approx(found.metrics[f"{name}_loss"], rel=1e-6)
        assert float(grid[name, 2, 1]["loss"]) == pytest.approx(recurrent.metrics[f"{name}_loss"], rel=1e-6)
    assert len({row["loss"] for row in grid.values()}) == len(grid)


def test_texts_and_samples_follow_from_set_and_seed(data: DocumentData) -> None:
    module, state = ebt_module(num_steps=2), torch.get_rng_state()
    first, again, other = (PROBE.measure(module, data, seed).metrics for seed in (0, 0, 1))
    assert first == again and first["validation_loss"] != other["validation_loss"]
    assert torch.equal(state, torch.get_rng_state())


def test_texts_of_validation_lie_at_equal_distances(data: DocumentData) -> None:
    everything = torch.cat([ids for ids, _ in data.evaluation_batches("val")])
    found = [row for ids, _ in scored_batches(data, "validation", 4, 2) for row in ids]
    for row, expected in zip(found, everything[:: len(everything) // 4], strict=True):
        assert torch.equal(row, expected[: len(row)])
    whole = [row for ids, _ in scored_batches(data, "validation", 10**6, 8) for row in ids]
    assert len(whole) == len(everything)


def test_sets_without_files_are_not_available_and_the_reason_says_how_to_get_them(data: DocumentData) -> None:
    probe = Thinking(("validation", "squad"), (2,), (1,), num_texts=2)
    found = probe.measure(ebt_module(num_steps=2), data, 0)
    assert set(found.unavailable) == {f"squad_{kind}" for kind in ("loss", "first_loss", "longer_loss", "best_loss")}
    assert all(re.fullmatch("needs squad: hf download .*; then use --fill", why) for why in found.unavailable.values())
    assert "validation_loss" in found.metrics


UNCERTAINTY = EnergyUncertainty(("dyck-generated",), ("dyck-generated",), num_steps=4, num_texts=8)


def test_energies_losses_and_entropies_of_one_batch_agree_with_the_model(data, monkeypatch):
    monkeypatch.setattr(thinking, "BATCH_SIZE", 8)
    module = ebt_module(num_steps=2, most_steps=3)
    found = UNCERTAINTY.measure(module, data, 0)
    seen = dict[str, list[Tensor]](energy=[], loss=[], entropy=[])
    kept = json.loads(found.attachments["token_energies.json"])["texts"][0]
    generator = torch.Generator().manual_seed(mix(0, "energy_uncertainty", "validation"))
    for ids, following in scored_batches(data, "validation", 8, 8):
        start = torch.randn((1, *ids.shape, module.model.vocabulary_size), generator=generator)
        states = list(think(module.model, ids, start, 4))
        logarithms, counted = states[3].predictions[0].log_softmax(-1), following != IGNORED
        seen["energy"].append(states[3].energies[0][counted])
        seen["entropy"].append(-(logarithms.exp() * logarithms).sum(-1)[counted])
        seen["loss"].append(-logarithms.gather(-1, following.clamp(min=0)[..., None])[..., 0][counted])
        assert kept["energies"] == [pytest.approx(state.energies[0, 0, :5].tolist(), rel=1e-4) for state in states]
        assert kept["tokens"] == [data.tokenizer.decode([token]) for token in following[0, :5].tolist()]
    values = {name: torch.cat(parts) for name, parts in seen.items()}
    for name in ("energy", "entropy"):
        assert found.metrics[f"validation_{name}"] == pytest.approx(float(values[name].mean()), rel=1e-5)
    assert kept["loss"] == pytest.approx(values["loss"][:5].tolist(), rel=1e-4)
    for name in ("energy", "entropy"):
        expected = spearmanr(values[name].numpy(), values["loss"].numpy()).statistic
        assert found.metrics[f"{name}_rank"] == pytest.approx(expected, abs=1e-3)
        assert found.metrics[f"{name}_rank_low"] < expected < found.metrics[f"{name}_rank_high"]
    assert kept["trained"] == 3 and len(json.loads(found.attachments["token_energies.json"])["texts"]) == 2


def test_a_transformer_has_entropy_and_loss_but_no_energy(data: DocumentData) -> None:
    found = UNCERTAINTY.measure(transformer_module(), data, 0)
    assert not found.attachments and not any("energy" in name for name in found.metrics)
    assert {"entropy_rank", "dyck-generated_loss_auroc", "dyck-generated_entropy_auroc"} <= set(found.metrics)
    assert 0 <= found.metrics["dyck-generated_loss_auroc"] <= 1


@pytest.mark.parametrize("make", [lambda: ebt_module(num_steps=2), transformer_module])
def test_a_model_whose_weights_are_no_numbers_has_no_number_anywhere(make: Any, data: DocumentData) -> None:
    module = make()
    for parameter in module.parameters():
        parameter.fill_(torch.nan)
    found = UNCERTAINTY.measure(module, data, 0)
    assert found.metrics and all(map(math.isnan, found.metrics.values())), found.metrics
