"""The id of a cell depends on the content of its data, not on the computer that prepared them."""

import importlib
import importlib.metadata
import json
import logging
import platform
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paper_repro.base import identity
from paper_repro.base.errors import RESULTS
from paper_repro.base.files import sha256_of_bytes
from paper_repro.cells.planned import file_hashes, plan_cell
from paper_repro.datamodules import docstrings, sudoku
from paper_repro.datamodules.sudoku_boards import puzzle
from paper_repro.datamodules.text import TokenData
from paper_repro.datamodules.token_shards import TokenManifest
from paper_repro.scripts import prepare_data
from paper_repro.tables import plan as plans
from paper_repro.tables import spec

ELSEWHERE = "99.0+cu130"
FILES = {
    "docstrings": {"manifest": "docstrings-300/manifest.json"},
    "coco": {"manifest": "coco-8/manifest.json"},
    "sudoku": {name: f"sudoku/{name}" for name in ("features.pt", "labels.pt", "test.csv")},
}
PUBLISHED = {  # SHA-256 of the tokenizer, the training shard and the validation shard, by vocabulary
    512: (
        "b2961c7d0fb1fc157d4c4e2dfa9eed65893330f9af6b79f00d681c8f1173cf8e",
        "b08f89800ea49d0488af589f21cd44f5794e6b8d7c77ecf2ea22cefda3c98c9d",
        "60fd141fd70b12d179c8e4a2714fd9cb49f1678729f7dec72e3d9a6628fc978d",
    ),
    2048: (
        "a2258c42b5da02fc3042eb40dc0745b1417c6ac406eb98a31bc61811e88d03c4",
        "72d4d660ac15a6487116814fbab21964a101164fb81c0b6eb40f92d4c333f566",
        "a6ae3718500335d2194b213351f8c17b9e37a22e95435c72110b8dbbae71f129",
    ),
}


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small standard library, images and boards."""
    folder = tmp_path / "sources"
    for name in ("library", "images/train2014", "images/val2014", "boards"):
        (folder / name).mkdir(parents=True)
    prose = "This is the text of function {} and it says what the function does with its arguments."
    code = "\n".join(f'def f{index}():\n    """{prose.format(index)}"""\n' for index in range(150))
    (folder / "library" / "first.py").write_text(code)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(folder / "library"))
    monkeypatch.setattr(docstrings, "_folder", lambda _: folder / "boards")  # no package's sources
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
        "docstrings": ["--vocabulary", "300", "--packages", "torch,numpy,tokenizers"],
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
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(moved / "library"))
    assert prepared(name, moved, tmp_path / "elsewhere" / "data") == here
    assert None not in here[0].values()


def test_a_manifest_that_names_versions_keeps_its_bytes_and_its_id(sources: Path, tmp_path: Path) -> None:
    prepared("docstrings", sources, tmp_path)
    path = tmp_path / "docstrings-300" / "manifest.json"
    content = json.loads(path.read_bytes())
    assert "python" not in content["source"] and "numpy" in json.loads(path.with_name("versions.json").read_bytes())
    content["source"] |= {"python": "3.10.1", "packages": {"numpy": "1.0"}}
    path.write_bytes(older := json.dumps(content, indent=1).encode() + b"\n")
    hashes, _ = prepared("docstrings", sources, tmp_path)
    assert path.read_bytes() == older and hashes == {"manifest": sha256_of_bytes(older)}
    TokenManifest.read(path).verify(path.parent)


def write_manifest(root: Path, size: int, source: dict[str, Any], val: str | None = None) -> Path:
    """Write the manifest of the published tokens, as another computer would."""
    tokenizer, train, own = PUBLISHED[size]
    shards = [
        {"file": f"{split}-00000.bin", "split": split, "documents": 1, "tokens": 2, "bytes": 3, "sha256": digest}
        for split, digest in (("train", train), ("val", val or own))
    ]
    content = {
        "format": 1,
        "source": {"name": "docstrings", **source},
        "tokenizer": {"file": "x.json", "fingerprint": tokenizer, "vocabulary_size": size, "end_of_text": 0},
        "dtype": "<u2",
        "totals": {split: {"documents": 1, "tokens": 2, "bytes": 3} for split in ("train", "val")},
        "shards": shards,
    }
    path = root / f"docstrings-{size}" / "manifest.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


ELSEWHERE_MADE = {"python": "3.12.1", "packages": {"torch": "2.13.0+cu130"}, "platform": "Elsewhere"}


@pytest.mark.parametrize("source", [{}, ELSEWHERE_MADE], ids=["here", "elsewhere"])
def test_published_ids_are_found_by_their_tokens(source: dict[str, Any], tmp_path: Path) -> None:
    for size in PUBLISHED:
        write_manifest(tmp_path, size, source)
    found = 0
    for path in (RESULTS / "cells").glob("*/record.json"):
        record = json.loads(path.read_bytes())
        config = {**record["config"], "machine": {"data_root": str(tmp_path)}}
        if str(identity.files_of(config).get("manifest")).startswith("docstrings-"):
            assert identity.weights(record["config"], file_hashes(config)) == record["cell"]
            found += 1
    assert found > 40
    for size in PUBLISHED:
        files = {"manifest": f"docstrings-{size}/manifest.json"}
        data = TokenData(files, data_root=tmp_path)
        data.prepare_data = lambda: None  # type: ignore[method-assign]  # the shards are not there
        config = {"data": {"files": files}, "machine": {"data_root": tmp_path}}
        assert data.data_hashes()["manifest"] == file_hashes(config)["manifest"]


def test_another_text_has_other_ids_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def ids(root: Path) -> set[str]:
        plan = plans.make(spec.load("ngpt/table4"), "cpu", None, [f"machine.data_root={root}"])
        return {cell.id for cell in plan.all_cells}

    write_manifest(tmp_path / "same", 512, {})
    known = {path.name for path in (RESULTS / "cells").iterdir()}
    assert ids(tmp_path / "same") <= known and not caplog.messages
    other = write_manifest(tmp_path / "other", 512, {}, val="0" * 64)
    with caplog.at_level(logging.WARNING):
        assert not ids(tmp_path / "other") & known
    assert [message.split(",")[0] for message in caplog.messages] == [f"{other}: not the text of the published results"]


def test_an_absolute_name_of_a_file_gives_the_id_of_the_name_below_the_root(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 512, {})
    below, absolute = (
        plan_cell((), 0, {"data": {"files": {"manifest": name}}, "machine": {"data_root": str(tmp_path)}}).id
        for name in ("docstrings-512/manifest.json", str(path))
    )
    assert below == absolute
