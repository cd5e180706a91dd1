"""Texts that NRGPT's text metrics are held against."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paper_repro.cells.tasks import FINISHED, Cell, Outcome
from paper_repro.probes.text_quality import ReferenceTexts, reference_text

CORPUS = "".join(f"Line {number} has words {number * 7} and {'long ' * (number % 4)}ends.\n" for number in range(200))


def run(task: Any, *configs: dict[str, Any]) -> list[Outcome]:
    cells = [Cell(str(number), config) for number, config in enumerate(configs)]
    found: list[Outcome] = task.run(cells, Path(), None)
    return found


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(CORPUS)
    monkeypatch.setenv("PAPER_REPRO_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def text_of(seed: int = 0, **text: Any) -> dict[str, Any]:
    own = {"content": None, "characters": 300, "shuffle_words": False, "repeat": 1, **text}
    return {"text": own, "seed": seed, "data": {"files": {"text": "text.txt"}}}


@pytest.mark.usefixtures("corpus")
def test_reference_texts_are_whole_lines_and_shuffling_keeps_their_words() -> None:
    plain = [reference_text(text_of(seed))[0] for seed in range(20)]
    assert all(f"\n{text}\n" in f"\n{CORPUS}" and 200 < len(text) <= 300 for text in plain)
    assert len(set(plain)) > 15
    for seed in range(5):
        shuffled = reference_text(text_of(seed, shuffle_words=True))[0]
        assert Counter(shuffled.split()) == Counter(plain[seed].split()) and shuffled != plain[seed]
        lines = [[len(line.split()) for line in text.split("\n")] for text in (shuffled, plain[seed])]
        assert lines[0] == lines[1]
    assert reference_text(text_of(content="One line.", repeat=3))[0] == "One line.\nOne line.\nOne line."


@pytest.mark.usefixtures("corpus")
def test_reference_texts_are_scored_where_they_can_be() -> None:
    scorer = {
        "_target_": "paper_repro.metrics.text_scores.TextScorer",
        "gqs_engines": ["paper"],
        "similarity_model": "./absent",
    }
    texts = ["The dog sees the dog.", ""]
    plain, empty = run(ReferenceTexts(), *({**text_of(content=text), "scorer": scorer} for text in texts))
    assert plain.status == empty.status == FINISHED
    assert plain.metrics["distinct_1"] == 1.0 and "apcs_lines" in plain.unavailable
    assert empty.metrics == {} and "distinct_1" in empty.unavailable
