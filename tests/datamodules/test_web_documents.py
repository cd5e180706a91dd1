import gzip
import json
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError

import pytest

from paper_repro.datamodules import preparations, text_sources
from paper_repro.datamodules.documents import DocumentData
from paper_repro.datamodules.text_sources import is_val, sample_names
from paper_repro.datamodules.token_shards import TokenManifest
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.scripts import prepare_data
from paper_repro.tests.support.prepared import content, refusal
from paper_repro.tests.support.prepared import texts as written

TEXTS = [f"Document {index} of the web {'says more ' * (index % 5)}and ends here." for index in range(120)]
TOKENIZER = BytePairTokenizer.train(TEXTS, 300)
COLUMNS = {"redpajama": "raw_content", "fineweb": "text"}
SHARE, BLOCK = 0.1, 10
PARTS = (TEXTS[:50], TEXTS[50:])


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_sources, "VAL_SHARE", SHARE)
    monkeypatch.setattr(preparations, "SHARD_DOCUMENTS", BLOCK)
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.to_bytes())


def expected(split: str, texts: list[str] = TEXTS) -> list[str]:
    return [text for place, text in enumerate(texts) if text and is_val(place) == (split == "val")]


def put(path: Path, column: str, texts: list[str] = TEXTS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({column: text}) + "\n" for text in texts))


def prepare(folder: Path, name: str, to: str, *words: str) -> Path:
    given = ["--tokenizer", str(folder / "tokenizer.json"), "--to", str(folder / to)]
    assert prepare_data.main([name, *given, *words]) == 0
    return folder / to / name


def test_redpajamas_sample_has_ten_files_of_each_snapshot_language_and_partition() -> None:
    assert len(set(sample_names())) == 5 * 84 * 2 * 10 and "2014-15/0000/en_head" in sample_names()


@pytest.mark.parametrize("name", COLUMNS)
def test_a_folder_is_split_by_the_places_of_its_documents(tmp_path: Path, name: str) -> None:
    texts = [*TEXTS[:7], "", *TEXTS[7:40], "", *TEXTS[40:]]
    put(tmp_path / "web" / "part.jsonl", COLUMNS[name], texts)
    folder = prepare(tmp_path, name, "out", "--from", str(tmp_path / "web"))
    assert all(written(folder, split, TOKENIZER) == expected(split, texts) for split in ("train", "val"))
    assert 0 < len(expected("val", texts)) < 30
    source = TokenManifest.read(folder / "manifest.json").settings["source"]
    assert (source["name"], source["column"], source["from"]) == (name, COLUMNS[name], "local files")
    data = DocumentData({"manifest": f"{name}/manifest.json"}, 4, 8, 2, data_root=tmp_path / "out")
    assert data.train_batch(0)[0].shape == (4, 8) and data.splits == ("train", "val")
    assert prepare_data.main([name, "--verify", "--to", str(tmp_path / "out")]) == 0


def test_what_is_held_out_does_not_depend_on_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_sources, "VAL_DOCUMENTS", 3)
    put(tmp_path / "web" / "part.jsonl", "text")
    few = prepare(tmp_path, "fineweb", "few", "--from", str(tmp_path / "web"), "--max-tokens", "200")
    train = written(few, "train", TOKENIZER)
    assert written(few, "val", TOKENIZER) == expected("val")[:3]
    assert train == expected("train")[: len(train)] and 0 < len(train) < 20


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The publisher's files: b is missing, c is broken; returns the names of those that were opened."""
    opened = []

    def urlopen(url: str, timeout: float) -> BinaryIO:
        opened.append(url)
        if not (tmp_path / "served" / url).is_file():
            raise HTTPError(url, HTTPStatus.NOT_FOUND, "not found", Message(), None)
        return (tmp_path / "served" / url).open("rb")

    (tmp_path / "served").mkdir()
    first, last = (b"".join(json.dumps({"raw_content": text}).encode() + b"\n" for text in texts) for texts in PARTS)
    for name, packed in {"a": gzip.compress(first + b"{no json\n"), "c": b"no", "d": gzip.compress(last)}.items():
        (tmp_path / "served" / name).write_bytes(packed)
    monkeypatch.setattr(text_sources.urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(text_sources, "REDPAJAMA_URL", "{}")
    monkeypatch.setattr(text_sources, "sample_names", lambda: ["a", "b", "c", "d"])
    return opened


def test_a_stream_that_broke_off_resumes_in_the_file_where_it_stopped(tmp_path: Path, served: list[str]) -> None:
    whole = prepare(tmp_path, "redpajama", "whole", "--download")  # past missing and broken files
    assert all(written(whole, split, TOKENIZER) == expected(split) for split in ("train", "val"))
    path = tmp_path / "served" / "d"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join([*lines[:40], b"{}\n"])))
    given = ["--tokenizer", str(tmp_path / "tokenizer.json"), "--to", str(tmp_path / "out"), "--download"]
    assert "broke off at document 90" in refusal("redpajama", *given)
    path.write_bytes(gzip.compress(b"".join(lines)))
    served.clear()
    folder = prepare(tmp_path, "redpajama", "out", "--download")
    assert served == ["d", *"abcd"]  # the end of training, then validation
    assert content(folder) == content(whole)


def test_documents_of_another_column_or_too_few_are_refused(tmp_path: Path) -> None:
    own = ["--tokenizer", str(tmp_path / "tokenizer.json"), "--to", str(tmp_path / "out")]
    put(tmp_path / "web" / "part.jsonl", "text", TEXTS[:1])
    assert "expected a text in one called 'raw_content'" in refusal("redpajama", "--from", str(tmp_path / "web"), *own)
    assert "has no documents" in refusal("fineweb", "--from", str(tmp_path / "web"), *own)
