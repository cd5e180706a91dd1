import json
from pathlib import Path

import numpy as np
import pytest

from paper_repro.base.errors import UsageError
from paper_repro.datamodules import text_sources
from paper_repro.datamodules.text import BookData
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.scripts import prepare_data

TEXTS = [f"Book {number} begins here. {'It goes on and on. ' * number}" for number in range(5)]


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """A folder of books, in another order than that of their numbers, and a tokenizer beside it."""
    folder = tmp_path / "books"
    folder.mkdir()
    for number in reversed(range(5)):
        (folder / f"{number}.txt").write_text(TEXTS[number])
    (tmp_path / "tokenizer.json").write_bytes(BytePairTokenizer.train(TEXTS, 280).to_bytes())
    return folder


def prepare(books: Path, *words: str) -> Path:
    to = books.parent / "out"
    given = ["--from", str(books), "--tokenizer", str(books.parent / "tokenizer.json"), "--to", str(to)]
    assert prepare_data.main(["pg19", *given, *words]) == 0
    return to


def test_every_book_lies_in_the_test_split_in_order_with_its_end(books: Path) -> None:
    to = prepare(books, "--folder", "own")
    assert prepare_data.main(["pg19", "--verify", "--folder", "own", "--to", str(to)]) == 0
    data = BookData({"manifest": "own/manifest.json"}, window=8, data_root=to)
    tokenizer, stream = data.tokenizer, data.streams["test"]
    ids = np.asarray(stream[:]).tolist()
    ends = [index for index, token in enumerate(ids) if token == tokenizer.end_of_text]
    assert [tokenizer.decode(ids[a + 1 : b]) for a, b in zip([-1, *ends], ends, strict=False)] == TEXTS
    assert ends[-1] == len(ids) - 1
    assert json.loads((to / "own" / "manifest.json").read_bytes())["source"]["name"] == "pg19"


def test_what_is_no_folder_or_listing_of_books_is_refused(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="expected PG19's books"):
        text_sources.books(books.parent)
    monkeypatch.setattr(text_sources, "fetch", lambda _: b"<html>")
    with pytest.raises(UsageError, match="no listing of books"):
        text_sources.download_books(books)


def test_a_broken_download_goes_on_where_it_was(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_sources, "BOOKS", 12)  # each is a file that is written safely, which takes its time
    names = [f"test/{number}.txt" for number in range(12)]
    asked: list[str] = []
    lost = ["test/4.txt"]

    def fetch(url: str) -> bytes:
        if url == text_sources.BOOK_LISTING:
            return json.dumps({"items": [{"name": name} for name in ["test/", *names]]}).encode()
        name = url.removeprefix(text_sources.BOOK_FILES)
        if name in lost:
            raise UsageError("did not answer")
        asked.append(name)
        return f"book {name}".encode()

    monkeypatch.setattr(text_sources, "fetch", fetch)
    to = books.parent / "out"
    words = ["pg19", "--download", "--tokenizer", str(books.parent / "tokenizer.json"), "--to", str(to)]
    with pytest.raises(UsageError, match="did not answer"):
        prepare_data.main(words)
    assert len(asked) == 4
    lost.clear()
    assert prepare_data.main(words) == 0 and sorted(asked) == sorted(names)
    texts, source = text_sources.books(to / "pg19-texts")
    assert len(texts["test"]) == source["documents"] == 12 and texts["test"][0] == "book test/0.txt"
    assert json.loads((to / "pg19" / "manifest.json").read_bytes())["totals"]["test"]["documents"] == 12
