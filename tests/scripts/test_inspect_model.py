"""inspect_model.py with the models of nGPT's paper that come with the package, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.errors import run_main
from paper_repro.exports.weights import opened
from paper_repro.probes.inspection import Embeddings, Matrices, Scales
from paper_repro.scripts import inspect_model
from paper_repro.tables import figure

FIGURES = {f"{name}/figure.{end}" for name in ("embeddings", "matrices", "scales") for end in ("csv", "png", "svg")}


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw quickly."""
    monkeypatch.setattr(figure, "DOTS_PER_INCH", 20)


@pytest.mark.slow
def test_its_numbers_are_those_of_the_probes_on_the_weights_and_the_figures_lie_beside(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAPER_REPRO_RUNS", str(tmp_path))
    assert run_main(inspect_model.main, ["ngpt", "--json"]) == 0
    output, folder = capsys.readouterr(), tmp_path / "ngpt" / "inspection"
    model: Any = opened("ngpt")
    probes: dict[str, Any] = {"embeddings": Embeddings(), "matrices": Matrices([3, 4]), "scales": Scales()}
    with torch.no_grad():
        expected = {name: probe.measure(model.module, None, 0).metrics for name, probe in probes.items()}
    assert json.loads(output.out) == expected
    assert {str(path.relative_to(folder)) for path in folder.rglob("figure.*")} == FIGURES
    assert {Path(line) for line in output.err.splitlines()} == set(folder.rglob("figure*.*"))
    assert f"NGPT {model.cell}" in (folder / "embeddings" / "figure.csv").read_text()


@pytest.mark.slow
def test_a_gpt_has_no_scales(capsys: Any, tmp_path: Path) -> None:
    assert run_main(inspect_model.main, ["gpt", "--to", str(tmp_path), "--layers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["embeddings", "matrices", "scales"]
    assert lines[-1] == "scales"
    assert any(line.split()[0] == "condition_attention" and float(line.split()[1]) > 1 for line in lines[1:-1])
    assert "$W_q$, layer 1" in (tmp_path / "matrices" / "figure_appendix.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rgpt_parallel"], "found RGPTParallel: choose model=ngpt/gpt"),
        (["ngpt", "--layers", "0"], "--layers: 0: give whole numbers of 1 or more"),
        (["ngpt", "--layers", "2,99"], "--layers 2,99: the model has "),
        (["ngpt", "--to", "FILE"], "FILE: cannot be written to"),
    ],
)
def test_wrong_words(tmp_path: Path, capsys: Any, words: list[str], message: str) -> None:
    (tmp_path / "file").write_text("")
    file = str(tmp_path / "file")
    assert run_main(inspect_model.main, [word.replace("FILE", file) for word in words]) == 2
    assert message.replace("FILE", file) in capsys.readouterr().err
