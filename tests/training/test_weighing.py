"""Batches weigh as much as they have targets, however a step's documents are shared into batches and devices."""

import math

import pytest
import torch
from safetensors.torch import load_file

from paper_repro.base.identity import IGNORED
from paper_repro.datamodules.documents import DocumentData
from paper_repro.lightning_modules.next_token import NextTokenModule
from paper_repro.lightning_modules.prediction_descent import PredictionDescent
from paper_repro.training.module import PaperModule

ALIKE = 1e-9
"""Relative, in float64: sums in another order."""


def sizes(batch, accumulate=1):
    return f"data.batch_size={batch}", f"training.accumulate={accumulate}"


def trained(run, folder, *cells):
    """The training losses and the weights of each cell."""
    outcomes = run(list(cells), folder)
    losses = [[value for _, value in outcome.curves["training_loss"]] for outcome in outcomes]
    return list(zip(losses, [load_file(folder / one.id / "weights.safetensors") for one in cells], strict=True))


def assert_alike(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=ALIKE, abs=0)
    for name, tensor in expected[1].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=ALIKE, atol=ALIKE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [sizes(1, 8), (*sizes(2, 4), "machine.devices=2"), (*sizes(1, 8), "machine.devices=2")]
)
def test_eight_documents_are_one_step_however_they_are_shared_into_batches_and_devices(words, language, run, tmp_path):
    (expected,) = trained(run, tmp_path / "one", language(*sizes(8)))
    (found,) = trained(run, tmp_path / "several", language(*words))
    assert_alike(found, expected)


def test_cells_trained_together_count_the_targets_that_each_has(language, run, tmp_path):
    cells = [language(*sizes(4), seed=seed) for seed in range(2)]
    stacked = trained(run, tmp_path / "stack", *cells)
    for cell, found in zip(cells, stacked, strict=True):
        assert_alike(found, *trained(run, tmp_path / cell.id, cell))


@pytest.mark.parametrize("model", ["ebt/transformer", "ebt/s1", "ebt/s2"])
def test_batches_without_padding_train_bit_for_bit_as_by_the_mean_of_their_losses(
    model, language, run, tmp_path, monkeypatch
):
    cell = language(*sizes(2, 3), "data.window=3", "training.precision=32-true", model=model)
    found = trained(run, tmp_path / "weighed", cell)
    for kind in (NextTokenModule, PredictionDescent):
        monkeypatch.setattr(kind, "num_targets", PaperModule.num_targets)
    expected = trained(run, tmp_path / "mean", cell)
    assert found[0][0] == expected[0][0]
    assert all(torch.equal(tensor, expected[0][1][name]) for name, tensor in found[0][1].items())


def without_targets(monkeypatch, steps):
    """Let the batches of such steps have padding alone, from the data alone."""
    whole = DocumentData.train_batch

    def batch(self, step):
        ids, following = whole(self, step)
        return ids, torch.full_like(following, IGNORED) if step in steps else following

    monkeypatch.setattr(DocumentData, "train_batch", batch)


def test_a_batch_without_targets_adds_nothing_to_its_step(language, run, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        without_targets(patched, range(1, 8, 2))
        (found,) = trained(run, tmp_path / "empty", language(*sizes(4, 2)))
    whole = DocumentData.train_batch
    monkeypatch.setattr(DocumentData, "train_batch", lambda self, step: whole(self, 2 * step))
    assert_alike(found, *trained(run, tmp_path / "alone", language(*sizes(4))))


@pytest.mark.parametrize("kind", ["alone", "accumulated", "stacked", "ebt"])
def test_a_step_without_targets_has_no_gradient(kind, language, run, tmp_path, monkeypatch):
    batches = 2 if kind == "accumulated" else 1
    without_targets(monkeypatch, range(batches, 2 * batches))
    model = "ebt/s1" if kind == "ebt" else "ebt/transformer"
    cells = [language(*sizes(4, batches), model=model, seed=seed) for seed in range(2 if kind == "stacked" else 1)]
    for losses, weights in trained(run, tmp_path, *cells):
        assert losses[1] == 0 and all(losses[step] > 1 for step in (0, 2, 3))
        assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert math.isfinite(losses[-1])
