import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import safetensors.torch
import torch

import paper_repro
from paper_repro.base.errors import UsageError, run_main
from paper_repro.cells import records
from paper_repro.cells.records import Record, record_path
from paper_repro.cells.tasks import DIVERGED, FINISHED, WEIGHTS, Cell, Outcome
from paper_repro.exports.frame import frame
from paper_repro.exports.weights import find_record
from paper_repro.scripts.export import main
from paper_repro.tables.spec import EXTRA_PAPERS
from paper_repro.tests.support import synthetic
from paper_repro.training import checkpoints
from paper_repro.training.build import build

SIZES = {"vocabulary_size": 20, "block_length": 8, "width": 8, "num_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "tied": {"_target_": "paper_repro.models.gpt.GPT", **SIZES, "num_layers": 1, "tie_output": True},
    "cem": {
        "_target_": "paper_repro.models.llama.Llama",
        **SIZES,
        "num_layers": 1,
        "hidden": 16,
        "attention": {"_target_": "paper_repro.models.cem.CEMAttention", "_partial_": True},
        "feed_forward": {"_target_": "paper_repro.models.llama.gated_feed_forward", "_partial_": True},
    },
}
CELL = "0123456789abcdef"


def write(
    root: Path, model: dict[str, Any], status: str = "finished", weights: bool = True, data: Any = None
) -> torch.nn.Module:
    """Write a cell as a run leaves it, and return its model."""
    config = {
        "module": {"_target_": "paper_repro.lightning_modules.nrgpt_shakespeare.NRGPTShakespeare"},
        "model": model,
        "data": {"_target_": "paper_repro.datamodules.text.CharacterData", "files": {"text": "corpus.txt"}},
        "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.01},
        "schedule": {"_target_": "paper_repro.training.schedules.Cosine"},
        "training": {"steps": 1},
        "seed": 3,
    }
    record = Record(CELL, status, 3, config, {"val_loss": 1.0}, {}, 10, None, 1.0, None, "", {"data": data or {}})
    records.write(record_path(root, CELL), record)
    built = build(Cell(CELL, config))
    if weights:
        checkpoints.save_weights(root / "cells" / CELL / WEIGHTS, built.module, CELL)
    return built.module.model.eval()


@pytest.fixture
def finished(tmp_path: Path) -> Callable[..., torch.nn.Module]:
    return lambda model="tied", **given: write(tmp_path, MODELS[model], **given)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(16).reshape(2, 8) % 20)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_and_its_cell_are_the_trained_model(name, finished, tmp_path, capsys):
    model = finished(name)
    assert run_main(main, [CELL, "--to", str(tmp_path / "out"), "--runs", str(tmp_path)]) == 0
    files = ["README.md", "config.json", "model.safetensors"]  # no vocabulary: the data are not here
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == files
    assert capsys.readouterr().out.split() == [str(tmp_path / "out" / file) for file in files]
    for place in (tmp_path / "out", tmp_path / "cells" / CELL, CELL, CELL[:6]):
        found = paper_repro.load(place, runs=tmp_path)
        assert type(found) is type(model) and not found.training
        assert torch.equal(logits(found), logits(model))  # the same code on the same numbers
    stored = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert {*stored} == model.state_dict().keys() - ({"output.weight"} if name == "tied" else set())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model"] == MODELS[name] and config["cell"] == CELL and config["metrics"] == {"val_loss": 1.0}
    assert config["training"]["optimizer"]["lr"] == 0.01 and config["seed"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["0123456789abcdee", "--to", "new"], "not the id of a cell in"),
        ([CELL, "--to", "full"], "--to full: something lies there; give a new folder"),
        (["ngpt"], "which model, and where to? give MODEL --to DIR, or --make NAME"),
        (["--make", "ngptt"], "no model of that name (did you mean 'ngpt'?)"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    assert run_main(main, [*words, "--runs", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and [path.name for path in tmp_path.rglob("*")] == ["full", "mine.txt"]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"weights": False}, "weights.safetensors: not there, expected the weights of the cell"),
        ({"status": "diverged", "weights": False}, "the cell is diverged"),
    ],
)
def test_a_cell_without_weights(made, message, finished, tmp_path):
    finished(**made)
    with pytest.raises(UsageError, match=message):
        paper_repro.load(CELL, runs=tmp_path)


def test_the_committed_table_3_is_a_tidy_table() -> None:
    found = frame("cem/table3", scale="cpu")
    head = ["artifact", "scale", "kernel", "model", "seed", "metric", "value", "unit", "status", "cell"]
    assert [*found.columns] == [*head, "num_parameters", "seconds", "device", "commit"]
    own = found[(found.kernel == "rbf") & (found.model == "t2") & (found.metric == "test_rmse")]
    assert [*own.seed] == [*range(10)] and own.cell.iloc[0] == "95071d22e59ea75a"
    assert own.value.iloc[0] == 0.01137847846283044 and own.num_parameters.iloc[0] == 22657
    assert {*own.unit} == {"standard deviations of the training targets"} and {*own.status} == {FINISHED}
    means = found[found.metric == "test_rmse"].groupby(["kernel", "model"]).value.mean()
    assert f"{means['rbf', 't2']:.4f}" == "0.0105" and len(means) == 5 * 6
    assert found.duplicated(["kernel", "model", "seed", "metric"]).sum() == 0


def test_what_a_cell_lacks_is_nan_and_what_was_not_run_has_no_row(tmp_path, monkeypatch):
    made = synthetic.plan(tmp_path)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    lost, absent = made.cells[0], made.cells[1]

    def outcome(cell: Any) -> Outcome:
        if cell is lost:
            return Outcome(DIVERGED)
        return Outcome(FINISHED, {"error": 0.5}, unavailable={"similarity": "needs gpt2"})

    synthetic.fill(tmp_path / "runs", made, outcome)
    record_path(tmp_path / "runs", absent.id).unlink()
    found = frame(made.artifact.id, scale=made.scale_name, runs=tmp_path / "runs")
    assert absent.id not in {*found.cell} and {*found.cell} == {cell.id for cell in made.cells} - {absent.id}
    own = found[found.cell == lost.id]
    assert {*own.status} == {DIVERGED} and own.value.isna().all()
    assert {*own.metric} == {name for name, metric in made.artifact.metrics.items() if metric.measured}
    other = found[found.cell == made.cells[2].id].set_index("metric").value
    assert other["error"] == 0.5 and pandas.isna(other["similarity"])


def test_a_record_is_found_by_its_folder_its_id_or_the_beginning_of_it(tmp_path: Path) -> None:
    made = synthetic.plan(tmp_path)
    synthetic.fill(tmp_path, made, lambda cell: Outcome(FINISHED, {"error": 0.5}))
    home = record_path(tmp_path, made.cells[0].id).parent
    for word in (home, home / "record.json", made.cells[0].id, made.cells[0].id[:6]):
        folder, record = find_record(word, tmp_path)
        assert folder == home and record.cell == made.cells[0].id
    home.rename(home.with_name("abcd000000000001"))
    record_path(tmp_path, made.cells[1].id).parent.rename(home.with_name("abcd000000000002"))
    with pytest.raises(UsageError, match="no folder cells/ in it, expected a runs folder"):
        frame("cem/table3", runs=home / "nowhere")
    for word, said in (("abcd", "abcd: 2 cells begin so"), ("abc", "abc: no record.json in it")):
        with pytest.raises(UsageError, match=said):
            find_record(word, tmp_path)
