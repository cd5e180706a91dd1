import json
import random
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.datamodules import continuations
from paper_repro.datamodules.token_shards import write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.scripts import prepare_data
from paper_repro.tests.support.prepared import refusal

WANTED = 40


def texts(seed: int, count: int) -> list[str]:
    """Documents of words that are longer than most tokens."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("aeiounrst", k=draw.randint(2, 9))) for _ in range(80)]
    return [" ".join(draw.choices(words, k=120)) + f".\n\nNumber {index}" for index in range(count)]


TRAIN, VAL = texts(0, 60), texts(1, 60)
TOKENIZER = BytePairTokenizer.train(TRAIN + VAL, 290)


def corpus(root: Path, val: list[str]) -> None:
    splits = {"train": TRAIN, "val": val}
    write_shards(root / "documentation-512", splits, {"name": "test"}, TOKENIZER)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(continuations, "QUESTIONS", WANTED)
    corpus(tmp_path, VAL)
    return tmp_path


def prepare(root: Path, *words: str) -> Path:
    assert prepare_data.main(["continuations", "--to", str(root), *words]) == 0
    return root / "downstream" / "continuations-512"


def rows(folder: Path, letters: int, part: str = "test") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"continuations_{letters}_{part}.jsonl").read_text().splitlines()]


def test_the_same_documents_give_the_same_bytes_and_they_are_verified(root: Path, tmp_path: Path) -> None:
    folder = prepare(root)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(before) == 3 * len(continuations.LETTERS) + 1
    prepare(root)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert str(tmp_path).encode() not in b"".join(before.values())  # the folder may be moved


@pytest.mark.parametrize("letters", continuations.LETTERS)
def test_true_texts_go_on_in_validation_documents_and_all_answers_have_six_tokens(root: Path, letters: int) -> None:
    folder = prepare(root)
    found = rows(folder, letters)
    assert len(found) == WANTED and len({row["context"] for row in found}) == WANTED
    assert [[row["answer"] for row in found].count(index) for index in range(4)] == [WANTED // 4] * 4
    for part, most in (("test", continuations.CONTEXT), ("dev", continuations.EXAMPLE_CONTEXT)):
        for row in rows(folder, letters, part):
            context, choices = row["context"], row["choices"]
            homes = [index for index, text in enumerate(VAL) if context + choices[row["answer"]] in text]
            assert any((index % continuations.EXAMPLE_SHARE == 0) == (part == "dev") for index in homes)
            word = context.split()[-1]
            assert len(set(choices)) == 4 and min(len(word), 5) == letters and word.isalpha()
            before, wholes = TOKENIZER.encode(context), [TOKENIZER.encode(context + text) for text in choices]
            assert len(before) <= most and all(ids[: len(before)] == before for ids in wholes)
            assert {len(ids) for ids in wholes} == {len(before) + continuations.CONTINUATION}


def test_what_cannot_be_prepared_is_refused_by_name(root: Path) -> None:
    to = ("continuations", "--to", str(root))
    assert "needs documentation-2048/manifest.json" in refusal(*to, "--vocabulary", "2048")
    folder = prepare(root)
    continuations.check(folder)
    (folder / "continuations_2_test.jsonl").unlink()
    with pytest.raises(UsageError, match=r"cannot be read.*continuations_2_test"):
        continuations.check(folder)


def test_too_few_documents_are_refused(tmp_path: Path, root: Path) -> None:
    few = tmp_path / "few"
    corpus(few, VAL[:12])
    message = refusal("continuations", "--to", str(few))
    assert "questions of the task continuations_1 (dev), expected 5: its 12 validation documents are too few" in message
    assert not (few / "downstream").exists()
