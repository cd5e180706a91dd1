import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.errors import ROOT, run_main
from paper_repro.cells import records
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import Cell
from paper_repro.lightning_modules.ngpt_speedup import NGPTSpeedup
from paper_repro.models.ngpt import NGPT
from paper_repro.probes.inspection import Embeddings, Matrices, Scales
from paper_repro.tables import figure
from paper_repro.training import checkpoints
from paper_repro.training.build import build
from paper_repro.training.schedules import Constant

SCRIPTS = ROOT / "scripts"
CELL = "0123456789abcdef"
SIZES = {"vocabulary_size": 32, "block_length": 8, "width": 8, "num_heads": 2}
OWN = {"_target_": "paper_repro.models.ngpt.NGPT", "num_layers": 2}
FIGURES = {f"{name}/figure.{end}" for name in ("embeddings", "matrices", "scales") for end in ("csv", "png", "svg")}


MAIN = importlib.import_module("paper_repro.scripts.inspect_model").main


def config(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "module": {"_target_": "paper_repro.lightning_modules.ngpt_speedup.NGPTSpeedup"},
        "model": {**SIZES, **model},
        "data": {"_target_": "paper_repro.datamodules.text.TokenData", "files": {"manifest": "absent/manifest.json"}},
        "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.01},
        "schedule": {"_target_": "paper_repro.training.schedules.Cosine"},
        "training": {"steps": 1},
        "seed": 3,
    }


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write a cell as a run leaves it; ``weights`` are of another model, where given.  Returns its folder."""

    def write(model: dict[str, Any] = OWN, weights: dict[str, Any] | None = None, status: str = "finished") -> Path:
        folder = tmp_path / "cells" / CELL
        torch.manual_seed(0)
        parts = build(Cell(CELL, config(weights or model)))
        with torch.no_grad():
            for parameter in parts.module.parameters():
                parameter.mul_(1 + 0.1 * torch.rand_like(parameter))
        checkpoints.save_weights(folder / checkpoints.WEIGHTS, parts.module, CELL)
        record = Record(CELL, status, 3, config(model), {}, {}, 10, None, 1.0, None, "", {})
        records.write(folder / "record.json", record)
        return folder

    return write


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw quickly."""
    monkeypatch.setattr(figure, "DOTS_PER_INCH", 20)


def refusal(folder: Path, capsys: Any, *words: str) -> str:
    assert run_main(MAIN, [str(folder), *words]) == 2
    output = capsys.readouterr()
    assert output.out == "" and not (folder / "inspection").exists()
    return str(output.err)


def subprocess_of(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=folder, timeout=120
    )


@pytest.mark.slow
def test_its_numbers_are_those_of_the_probes_on_the_weights_and_the_figures_lie_beside(
    make: Callable[..., Path], capsys: Any
) -> None:
    folder = make()
    assert run_main(MAIN, [str(folder), "--json"]) == 0  # it has two layers, these are drawn
    output = capsys.readouterr()
    model = NGPT(**SIZES, num_layers=2)
    module = NGPTSpeedup(model, partial(torch.optim.AdamW, lr=0.01), Constant()).eval()
    checkpoints.load_weights(folder / checkpoints.WEIGHTS, module, CELL)
    probes: dict[str, Any] = {"embeddings": Embeddings(), "matrices": Matrices([1, 2]), "scales": Scales()}
    with torch.no_grad():
        expected = {name: probe.measure(module, None, 3).metrics for name, probe in probes.items()}
    assert json.loads(output.out) == expected
    assert expected["embeddings"]["in_norm_error"] > 0.01  # not the weights that the model starts with
    drawn = {str(path.relative_to(folder / "inspection")) for path in (folder / "inspection").rglob("figure.*")}
    assert drawn == FIGURES
    assert {Path(line) for line in output.err.splitlines()} == set((folder / "inspection").rglob("figure*.*"))
    assert f"NGPT {CELL}" in (folder / "inspection" / "embeddings" / "figure.csv").read_text()
    assert "$W_q$, layer 2" in (folder / "inspection" / "matrices" / "figure_appendix.svg").read_text()


@pytest.mark.slow
def test_a_gpt_from_its_weights_file_into_another_folder(
    make: Callable[..., Path], capsys: Any, tmp_path: Path
) -> None:
    folder = make({"_target_": "paper_repro.models.ngpt.BaselineGPT", "num_layers": 1})
    assert run_main(MAIN, [str(folder / checkpoints.WEIGHTS), "--to", str(tmp_path / "drawn")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["embeddings", "matrices", "scales"]
    assert lines[-1] == "scales"  # it has none
    assert any(line.split()[0] == "condition_attention" and float(line.split()[1]) > 1 for line in lines[1:-1])
    assert "$W_q$, layer 1" in (tmp_path / "drawn" / "matrices" / "figure_appendix.svg").read_text()
    assert len(list((tmp_path / "drawn").rglob("figure.png"))) == 3 and not (folder / "inspection").exists()


def test_a_model_without_these_parts(make: Callable[..., Path], capsys: Any) -> None:
    message = refusal(make({"_target_": "paper_repro.models.gpt.GPT", "num_layers": 1}), capsys)
    assert "found GPT: choose model=ngpt/gpt" in message and "a cell trained with one" in message


def test_weights_of_another_vocabulary_or_rotation(make: Callable[..., Path], capsys: Any) -> None:
    message = refusal(make(weights={**OWN, "vocabulary_size": 40}), capsys)
    assert "weights of another model than NGPTSpeedup" in message
    assert "token_embedding.weight (40, 8) (expected (32, 8))" in message
    message = refusal(make(weights={**OWN, "rope": "published"}), capsys)
    assert "missing model.rope_textbook" in message and "unexpected model.rope_published" in message


def test_what_is_damaged_or_unfinished(make: Callable[..., Path], capsys: Any, tmp_path: Path) -> None:
    assert "no record.json there" in refusal(tmp_path / "cells" / "none", capsys)
    assert "the cell is diverged" in refusal(make(status="diverged"), capsys)
    folder = make()
    weights = folder / checkpoints.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-7])
    assert "damaged" in refusal(folder, capsys)
    weights.unlink()
    assert "not there, expected the weights of the cell" in refusal(folder, capsys)
    (folder / "record.json").write_text("{}")
    assert "not a run record" in refusal(folder, capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layer", "1"], "unknown option --layer (did you mean '--layers'?)"),
        (["--layers", "0"], "--layers: 0: give whole numbers of 1 or more"),
        (["--layers", "2,3"], "--layers 2,3: the model has 2 layers"),
        (["--device", "tpu"], "--device: invalid choice: 'tpu'"),
    ],
)
def test_wrong_words(make: Callable[..., Path], capsys: Any, words: list[str], message: str) -> None:
    assert message in refusal(make(), capsys, *words)


def test_a_folder_that_cannot_be_written_to(make: Callable[..., Path], capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert run_main(MAIN, [str(make()), "--to", str(tmp_path / "file")]) == 2
    assert f"--to {tmp_path / 'file'}: cannot be written to" in capsys.readouterr().err
