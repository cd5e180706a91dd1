from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paper_repro.base import files
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, task_of
from paper_repro.datamodules import continuations
from paper_repro.datamodules.text import TokenData
from paper_repro.metrics.counts import Counts
from paper_repro.probes.downstream import INSTALL, Downstream
from paper_repro.probes.floors import BigramFloor, BigramModel
from paper_repro.tests.datamodules import test_continuations as made
from paper_repro.tests.probes.doubles import small_gpt

TASKS = {f"continuations_{letters}": "continuations-512" for letters in continuations.LETTERS}
MANIFEST = {"manifest": "documentation-512/manifest.json"}
COMMAND = "python scripts/prepare_data.py continuations"
COMMON: dict[str, Any] = {"tasks": TASKS, "name": "continuations", "prepare": COMMAND}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(continuations, "QUESTIONS", made.WANTED)
    made.corpus(tmp_path, made.VAL)
    return tmp_path


def data(root: Path) -> TokenData:
    return TokenData(MANIFEST, 8, 64, 3, data_root=root)


def outcome(root: Path) -> Outcome:
    section = {"_target_": "paper_repro.datamodules.text.TokenData", "files": MANIFEST}
    task = {"_target_": "paper_repro.probes.floors.DownstreamFloor", **COMMON}
    config = {"task": task, "data": {**section, "window": 64}, "machine": {"data_root": str(root)}, "seed": 0}
    (found,) = task_of(config).run([Cell("0" * 16, config)], root / "cells", SimpleNamespace())  # type: ignore[arg-type]
    return found


def test_the_model_is_the_count() -> None:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 7, (200,), generator=draw)
    counts = Counts((ids[:-1], ids[1:]), 9, [0.8])  # two ids are never seen
    asked = torch.randint(0, 9, (3, 5), generator=draw)
    logits = BigramModel(counts, 5)(asked)
    assert logits.shape == (3, 5, 9)
    assert torch.allclose(logits.exp().sum(dim=-1), torch.ones(3, 5, dtype=torch.float64), atol=1e-12)
    following = torch.randint(0, 9, (3, 5), generator=draw)
    expected = counts.probabilities((asked.flatten(), following.flatten())).log()
    assert torch.allclose(logits.gather(-1, following[..., None]).flatten(), expected, atol=1e-12)


def test_the_count_knows_little_more_than_chance_and_is_right_where_it_is_by_hand(root: Path) -> None:
    pytest.importorskip("lm_eval", reason=INSTALL)
    folder = made.prepare(root)
    found = outcome(root)
    assert found.status == FINISHED and set(found.data_hashes) == {"manifest", "tokenizer"}
    assert (root / "cells" / ("0" * 16) / "continuations-512.json").read_bytes() == (
        folder / "manifest.json"
    ).read_bytes()
    counts = BigramFloor().counts(data(root))
    for letters in continuations.LETTERS:
        right = 0
        for row in made.rows(folder, letters):
            scores = []
            for text in row["choices"]:
                ids = torch.tensor(made.TOKENIZER.encode(row["context"] + text))[-continuations.CONTINUATION - 1 :]
                scores.append(float(counts.probabilities((ids[:-1], ids[1:])).log().sum()))
            right += scores.index(max(scores)) == row["answer"]
        assert found.metrics[f"continuations_{letters}"] == pytest.approx(100 * right / made.WANTED, abs=1e-9)
    assert found.metrics["continuations_cropped"] == 0.0
    assert abs(found.metrics["continuations_mean"] - 25.0) < 4 * 100 * (0.25 * 0.75 / (5 * made.WANTED)) ** 0.5


def test_what_is_lacking_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {*TASKS, "continuations_mean", "continuations_cropped"}
    monkeypatch.setattr("paper_repro.probes.downstream._shipped_tasks", lambda: root)
    found = outcome(root)
    assert found.metrics == {} and found.unavailable.keys() == names
    (reason,) = set(found.unavailable.values())
    assert reason.startswith("needs downstream/continuations-512: ") and reason.endswith(f"run: {COMMAND}")


def test_altered_questions_are_refused_before_and_after_a_training(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made.prepare(root)
    altered = folder / "continuations_1_test.jsonl"
    altered.write_bytes(altered.read_bytes()[1:])
    message = "altered since it was prepared"
    monkeypatch.setattr("paper_repro.probes.downstream._shipped_tasks", lambda: root)
    with pytest.raises(UsageError, match=message):
        Downstream(**COMMON).of_model(small_gpt(), data(root))
    monkeypatch.setenv(files.DATA_VARIABLE, str(root))
    with pytest.raises(UsageError, match=message):
        Downstream(**COMMON)
