import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import IGNORED, mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.documents import DocumentData
from paper_repro.models.ebt import think
from paper_repro.probes.thinking import Thinking, scored_batches
from paper_repro.tests.support.ebt_language import documents, ebt_module, prose, transformer_module

SETS = ("validation", "dyck-generated")
PROBE = Thinking(SETS, steps=(1, 2, 4), samples=(1, 3), num_texts=6, batch_size=4)


@pytest.fixture
def data(tmp_path: Path) -> DocumentData:
    return documents(tmp_path)


@torch.no_grad()
def findings(probe: Thinking, module: Any, data: DocumentData, seed: int = 0) -> Findings:
    return probe.measure(module, data, seed)


def measured(probe: Thinking, module: Any, data: DocumentData, seed: int = 0) -> dict[str, float]:
    return findings(probe, module, data, seed).metrics


@torch.no_grad()
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


def grid_of(found: Findings, name: str = "thinking.csv") -> dict[tuple[str, int, int], dict[str, str]]:
    rows = csv.DictReader(io.StringIO(found.attachments[name].decode()))
    return {(row["set"], int(row["steps"]), int(row["samples"])): row for row in rows}


@pytest.mark.parametrize(("landscapes", "rule"), [(1, "code"), (2, "code"), (1, "listing")])
def test_every_loss_is_that_of_thinking_so_long_with_so_many(data: DocumentData, landscapes: int, rule: str) -> None:
    module = ebt_module(landscapes, num_steps=2, rule=rule)
    found = findings(PROBE, module, data)
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


def test_noise_is_added_where_it_is_asked_for_and_the_names_say_so(data: DocumentData) -> None:
    module = ebt_module(num_steps=2)
    found = findings(Thinking(("validation",), (1, 2), (1,), num_texts=4, noise=3.0), module, data)
    assert set(found.metrics) == {f"validation_{kind}loss_noise3" for kind in ("", "first_", "longer_")}
    assert set(found.attachments) == {"thinking_noise3.csv"}
    quiet = measured(Thinking(("validation",), (1, 2), (1,), num_texts=4), module, data)
    assert found.metrics["validation_loss_noise3"] != pytest.approx(quiet["validation_loss"], rel=1e-3)


def test_a_transformer_is_scored_once_and_a_recurrent_one_for_each_number_of_passes(data: DocumentData) -> None:
    plain = transformer_module()
    found = findings(PROBE, plain, data)
    assert set(found.metrics) == {f"{name}_loss" for name in SETS} and grid_of(found) == {}
    (ids, following), *_ = scored_batches(data, "validation", 4, 4)
    one = measured(Thinking(("validation",), num_texts=4), plain, data)["validation_loss"]
    assert one == pytest.approx(float(plain.loss((ids, following)).detach()), rel=1e-6)
    recurrent = findings(PROBE, transformer_module(num_passes=2), data)
    grid = grid_of(recurrent)
    assert set(grid) == {(name, passes, 1) for name in SETS for passes in (1, 2, 4)}
    for name in SETS:
        assert float(grid[name, 1, 1]["loss"]) == pytest.approx(found.metrics[f"{name}_loss"], rel=1e-6)
        assert float(grid[name, 2, 1]["loss"]) == pytest.approx(recurrent.metrics[f"{name}_loss"], rel=1e-6)
    assert len({row["loss"] for row in grid.values()}) == len(grid)


def test_texts_and_samples_follow_from_set_and_seed(data: DocumentData) -> None:
    module, state = ebt_module(num_steps=2), torch.get_rng_state()
    first, again, other = (measured(PROBE, module, data, seed) for seed in (0, 0, 1))
    assert first == again and first["validation_loss"] != other["validation_loss"]
    assert torch.equal(state, torch.get_rng_state())
    for batch, texts in zip(scored_batches(data, "validation", 6, 4), (4, 2), strict=True):
        assert len(batch[0]) == texts and (batch[1][:, -1] != IGNORED).any()
    known = {tuple(data.tokenizer.encode(text)) for text in prose(1, 20)}
    for ids, following in scored_batches(data, "validation", 6, 4):
        for row, targets in zip(ids, following, strict=True):
            text = (int(row[0]), *targets[targets != IGNORED].tolist())
            assert any(document[: len(text)] == text for document in known)


def test_sets_without_files_are_not_available_and_the_reason_says_how_to_get_them(
    data: DocumentData, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("paper_repro.base.files.DATA", tmp_path / "nowhere")
    monkeypatch.delenv("PAPER_REPRO_DATA", raising=False)
    probe = Thinking(("validation", "squad"), (2,), (1,), num_texts=2)
    found = findings(probe, ebt_module(num_steps=2), data)
    assert set(found.unavailable) == {f"squad_{kind}" for kind in ("loss", "first_loss", "longer_loss", "best_loss")}
    assert all(re.fullmatch("needs squad: hf download .*; then use --fill", why) for why in found.unavailable.values())
    assert "validation_loss" in found.metrics


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sets": ()}, "sets"),
        ({"sets": ("nowhere",)}, "must be one of"),
        ({"sets": ("gsm8k", "gsm8k")}, "different names"),
        ({"steps": ()}, "steps"),
        ({"samples": (1, 1)}, "samples"),
        ({"samples": (0,)}, "samples"),
        ({"samples": (2, 4)}, "samples must have 1 among them"),
        ({"num_texts": 0}, "num_texts"),
        ({"noise": -1.0}, "noise"),
    ],
)
def test_wrong_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Thinking(**given)


def test_another_model_is_refused(data: DocumentData) -> None:
    module = transformer_module()
    module.model = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="Linear cannot be scored"):
        measured(PROBE, module, data)
