"""The id of a cell depends on the content of its data, not on the computer that prepared them."""

import importlib
import importlib.metadata
import platform
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paper_repro.cells.planned import file_hashes, plan_cell
from paper_repro.datamodules import sudoku
from paper_repro.datamodules.sudoku_boards import puzzle
from paper_repro.scripts import prepare_data
from paper_repro.tests.support.prepared import documentation

ELSEWHERE = "99.0+cu130"
FILES = {
    "coco": {"manifest": "coco-8/manifest.json"},
    "sudoku": {name: f"sudoku/{name}" for name in ("features.pt", "labels.pt", "test.csv")},
}


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small images and boards."""
    folder = tmp_path / "sources"
    for name in ("images/train2014", "images/val2014", "boards"):
        (folder / name).mkdir(parents=True)
    for place in ("train2014/1.png", "train2014/2.png", "val2014/1.png"):
        pixels = np.random.default_rng(len(place)).integers(0, 256, (12, 10, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / place)
    monkeypatch.setattr(sudoku, "SATNET_BOARDS", 2)
    boards = torch.tensor(np.array([puzzle(seed, 60) for seed in range(2)]))
    hot = torch.nn.functional.one_hot(boards, 10)[..., 1:].float().view(2, 2, 9, 9, 9)
    torch.save(hot[:, 0].clone(), folder / "boards" / "features.pt")
    torch.save(hot[:, 1].clone(), folder / "boards" / "labels.pt")
    lines = [",".join("".join(map(str, part)) for part in board) for board in boards.tolist()]
    (folder / "boards" / "test.csv").write_text("\n".join(lines) + "\n")
    return folder


def prepared(name: str, sources: Path, root: Path) -> tuple[dict[str, str | None], str]:
    """Prepare data below ``root`` and return the hashes that enter an id, and the id."""
    words = {
        "coco": ["--from", str(sources / "images"), "--size", "8"],
        "sudoku": ["--from", str(sources / "boards")],
    }
    assert prepare_data.main([name, "--to", str(root), *words[name]]) == 0
    config = {"seed": 0, "data": {"files": FILES[name]}, "machine": {"data_root": str(root)}}
    return file_hashes(config), plan_cell((), 0, config).id


@pytest.mark.parametrize("name", FILES)
def test_data_prepared_elsewhere_give_the_same_id(
    name: str, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = prepared(name, sources, tmp_path / "data")
    version = importlib.metadata.version
    monkeypatch.setattr(platform, "python_version", lambda: "3.12.1")
    for what in ("platform", "system", "machine", "node"):
        monkeypatch.setattr(platform, what, lambda *_: "Elsewhere")
    changed = ("torch", "numpy", "tokenizers")
    for package in changed:
        monkeypatch.setattr(
            importlib.import_module(package), "__version__", torch.torch_version.TorchVersion(ELSEWHERE)
        )
    monkeypatch.setattr(importlib.metadata, "version", lambda asked: ELSEWHERE if asked in changed else version(asked))
    moved = sources.rename(tmp_path / "another place")
    assert prepared(name, moved, tmp_path / "elsewhere" / "data") == here
    assert None not in here[0].values()


def test_an_absolute_name_of_a_file_gives_the_id_of_the_name_below_the_root(tmp_path: Path) -> None:
    path = documentation(tmp_path, 300) / "manifest.json"
    below, absolute = (
        plan_cell((), 0, {"data": {"files": {"manifest": name}}, "machine": {"data_root": str(tmp_path)}}).id
        for name in ("documentation-300/manifest.json", str(path))
    )
    assert below == absolute
