"""The models that come with the package, and the hub, for which a local folder stands in.

Losses are those of a few stored windows: they tell a trained model from a damaged one, and are no metrics of a card.
"""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

import paper_repro
from paper_repro.base.configs import instantiate
from paper_repro.base.errors import RESULTS, UsageError, run_main
from paper_repro.base.files import sha256_of_bytes
from paper_repro.cells import records
from paper_repro.exports import card, weights
from paper_repro.exports.weights import CARD, CONFIG, SHIPPED, VOCABULARY, WEIGHTS, names, opened
from paper_repro.probes.thoughts import Manner, Reader
from paper_repro.scripts.export import main

NAMES = names()
TEXTS = json.loads(Path(__file__).with_name("windows.json").read_text())


def described(name: str) -> Any:
    return json.loads((SHIPPED / name / CONFIG).read_text())


def kind(name: str) -> str:
    return str(described(name)["model"]["_target_"]).rpartition(".")[2]


OF_TEXT = [name for name in NAMES if (SHIPPED / name / VOCABULARY).is_file()]
CONTINUES = [name for name in OF_TEXT if kind(name) != "EBT"]
OTHERS = [name for name in NAMES if name not in OF_TEXT]


def windows(name: str, tokenizer: Any) -> torch.Tensor:
    """Stored windows of the validation text, (B, T + 1)."""
    (file,) = described(name)["training"]["data"]["files"].values()
    (text,) = (rows for data, rows in TEXTS.items() if data in file)
    return torch.tensor([tokenizer.encode(row) if isinstance(row, str) else row for row in text])


def test_they_are_small_and_say_nothing_of_the_machine_that_made_them() -> None:
    assert {"gpt", "ngpt", "llama", "cem"} <= set(NAMES) <= card.listed()["models"].keys()
    sizes = {path: path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()}
    assert max(sizes.values()) <= 10**6 and sum(sizes.values()) <= 8 * 10**6
    for name in NAMES:
        assert not re.search(r"""["'(= ](/|[A-Z]:\\|~)""", (SHIPPED / name / CONFIG).read_text())
        assert {path.name for path in (SHIPPED / name).iterdir()} <= {CARD, CONFIG, VOCABULARY, WEIGHTS}


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_config_and_published_record_say(name: str) -> None:
    config, own = described(name), card.listed()["models"][name]
    text = (SHIPPED / name / CARD).read_text()
    assert text == card.written(name, config, (SHIPPED / name / WEIGHTS).stat().st_size)
    assert re.search(r"^\| licence of the data \| (?!not known)", text, re.MULTILINE) and "## Limits\n\nIt " in text
    record = records.read(records.record_path(RESULTS, own["cell"]))
    if "set" not in own:
        assert config["cell"] == record.cell and config["data_sha256"] == record.provenance["data"]
        assert config["metrics"].keys() <= record.metrics.keys()
        assert config["model"] == weights.identity.today(record.config)["model"]


@pytest.mark.parametrize("name", CONTINUES)
def test_a_language_model_writes_and_its_loss_is_about_that_of_its_card(name: str) -> None:
    state = torch.random.get_rng_state()
    model: Any = paper_repro.load(name)
    assert torch.equal(torch.random.get_rng_state(), state)
    rows = windows(name, model.tokenizer)
    with torch.no_grad():
        loss = float(model.cross_entropy(rows[:, :-1], rows[:, 1:]))
    assert abs(loss - described(name)["metrics"]["val_loss"]) < 0.3
    ids = model.generate(rows[:1, :5], 20, temperature=0.0)
    assert ids.shape == (1, 25) and len(model.tokenizer.decode(ids[0].tolist())) > 10


@pytest.mark.parametrize("name", [name for name in OF_TEXT if name not in CONTINUES])
def test_an_ebt_thinks_about_text(name: str) -> None:
    found = opened(name)
    model: Any = found.module
    reader = Reader(model.model, found.tokenizer(), Manner(settings=model.thinking))
    rows = windows(name, found.tokenizer()).tolist()
    losses = [math.log(reader.read(row, model.thinking.longest).perplexity or math.inf) for row in rows]
    assert abs(sum(losses) / len(losses) - found.described["metrics"]["val_loss"]) < 0.3


BATCH: dict[str, tuple[str, float]] = {
    "SudokuEBT": ("val_blanks", 0.05),
    "ImageEBT": ("test_psnr", 1.0),
    "DiT": ("test_psnr", 1.0),
    "CET": ("test_mse", 0.005),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_first_batch_is_predicted_about_as_well_as_the_card_says(name: str) -> None:
    found, (metric, tolerance) = opened(name), BATCH[kind(name)]
    data = instantiate(found.config["data"])
    measured = found.module.evaluate(data, 1)
    assert abs(measured[metric] - found.described["metrics"][metric]) < tolerance


class Hub:
    """A folder that takes and gives repositories as the hub does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create_repo(self, repo: str, private: bool, exist_ok: bool) -> None:
        assert exist_ok
        (self.folder / repo).mkdir(parents=True)

    def upload_folder(self, repo_id: str, folder_path: str) -> str:
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)
        return f"https://huggingface.co/{repo_id}/tree/main/"

    def snapshot_download(self, repo: str, revision: str | None, allow_patterns: list[str]) -> str:
        if revision is not None or not (self.folder / repo).is_dir():
            raise FileNotFoundError(f"404 for {repo}@{revision}\nmore lines")
        return str(self.folder / repo)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_what_is_pushed_is_loaded_from_the_hub(hub: Hub, capsys: Any) -> None:
    assert run_main(main, ["ngpt", "--to", "hf://me/mine"]) == 0
    assert capsys.readouterr().out == "https://huggingface.co/me/mine/tree/main/\n"
    assert {path.name for path in (hub.folder / "me/mine").iterdir()} == {CARD, CONFIG, VOCABULARY, WEIGHTS}
    assert (hub.folder / "me/mine" / CARD).read_text().startswith("---\nlicense: mit\n")
    own: Any = paper_repro.load("ngpt")
    found: Any = paper_repro.load("hf://me/mine")
    ids = windows("ngpt", None)[:, :-1]
    assert torch.equal(found(ids), own(ids))
    assert found.tokenizer.fingerprint == own.tokenizer.fingerprint
    with pytest.raises(UsageError, match=r"hf://me/mine: the hub did not take it \(.*File exists"):
        paper_repro.push("ngpt", "hf://me/mine")


def changed(tmp_path: Path, file: str, change: Any) -> Path:
    """A copy of a model with a change of the content of a JSON file."""
    shutil.copytree(SHIPPED / "gpt", tmp_path / "gpt")
    content = json.loads((tmp_path / "gpt" / file).read_text())
    change(content)
    (tmp_path / "gpt" / file).write_text(json.dumps(content))
    return tmp_path / "gpt"


def with_weights(tmp_path: Path, content: bytes, hashes: dict[str, str]) -> Path:
    folder = changed(tmp_path, CONFIG, lambda one: one.update(hashes))
    (folder / WEIGHTS).write_bytes(content)
    return folder


def of_model(tmp_path: Path, **model: Any) -> Path:
    return changed(tmp_path, CONFIG, lambda one: one["model"].update(model))


SCORER = {"_target_": "paper_repro.metrics.text_scores.TextScorer"}
FORGED = b"\xff" * 64
FORGED_HASH = {"weights_sha256": sha256_of_bytes(FORGED)}
REFUSED: dict[str, tuple[Any, str]] = {
    "name": (lambda _: "ngptt", r"ngptt: no model of that name \(did you mean 'ngpt'\?\); give a name, hf://"),
    "no network": (lambda _: "hf://me/none", r"the hub did not give it \(404 for me/none@None\); check the name"),
    "old": (lambda to: changed(to, CONFIG, lambda one: one.update(version=1)), "version 1, this code reads 2; export"),
    "other words": (
        lambda to: changed(to, VOCABULARY, lambda one: one["model"]["merges"].pop()),
        "tokenizer.json: not the vocabulary that config.json beside it names",
    ),
    "weights": (lambda to: with_weights(to, b"!", {}), "not the weights that config.json beside it names"),
    "forged": (lambda to: with_weights(to, FORGED, FORGED_HASH), "model.safetensors: cannot be read"),
    "other": (lambda to: of_model(to, num_layers=1), "weights of another model than BaselineGPT"),
    "target": (lambda to: of_model(to, _target_="os.system"), "'os.system' is refused"),
    "no module": (lambda to: changed(to, CONFIG, lambda one: one.update(model=SCORER)), "TextScorer: not a torch mod"),
    "no config": (lambda to: changed(to, CONFIG, lambda one: one.clear()), "not a config that export.py wrote"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_loaded_is_said_in_a_line(case: str, hub: Hub, tmp_path: Path) -> None:
    make, message = REFUSED[case]
    with pytest.raises(UsageError, match=message) as caught:
        paper_repro.load(make(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_model_is_made_from_its_published_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = next(
        path.parent.name
        for path in sorted((RESULTS / "cells").glob("*/record.json"))
        if 'GaussianProcessRegressor"' in path.read_text()
    )
    listed = {"models": {"gp": {"cell": cell, "set": {"training.steps": 2}, "title": "A regressor"}}, "data": {}}
    monkeypatch.setattr(card, "listed", lambda: listed)
    weights.make("gp", tmp_path / "made", tmp_path / "runs")
    config = json.loads((tmp_path / "made" / CONFIG).read_text())
    assert config["training"]["training"]["steps"] == 2 and config["dtype"] == "float16" and config["name"] == "gp"
    text = (tmp_path / "made" / CARD).read_text()
    assert "# made: A regressor" in text and f"the published cell `{cell}` with training.steps=2" in text
    model = paper_repro.load(tmp_path / "made")
    assert type(model).__name__ == "GaussianProcessRegressor" and next(model.parameters()).dtype == torch.float32
