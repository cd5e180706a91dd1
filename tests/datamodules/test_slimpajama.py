import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.datamodules import preparations, text_sources
from paper_repro.datamodules.text import SlimPajamaData
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.scripts import prepare_data
from paper_repro.tests.support.prepared import content, refusal, said_of, texts

TRAIN = [f"Document {index} of the corpus {'says more ' * (index % 5)}and ends here." for index in range(120)]
HELD_OUT = {split: [f"Document {index} for {split} alone." for index in range(12)] for split in ("validation", "test")}
TOKENIZER = BytePairTokenizer.train(TRAIN, 300)
LENGTHS = [len(ids) + 1 for ids in TOKENIZER.encode_many(TRAIN)]
ENDS = list(itertools.accumulate(LENGTHS))
BLOCK, KEPT = 10, 8


@pytest.fixture(autouse=True)
def few_held_out_in_small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_sources, "HELD_OUT_DOCUMENTS", KEPT)
    monkeypatch.setattr(preparations, "SHARD_DOCUMENTS", BLOCK)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """The hub's layout in small: two parquet files to train on, and one for each other split."""
    from datasets import Dataset

    files = {"train-0": TRAIN[:70], "train-1": TRAIN[70:], "validation-0": HELD_OUT["validation"]}
    for name, some in {**files, "test-0": HELD_OUT["test"]}.items():
        rows = Dataset.from_dict({"text": some, "meta": [{"redpajama_set_name": "C4"}] * len(some)})
        rows.to_parquet(str(tmp_path / "corpus" / "data" / f"{name}.parquet"))
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.to_bytes())
    return tmp_path


def prepare(folder: Path, to: str, *words: str, source: str = "corpus") -> Path:
    given = ["--from", str(folder / source), "--tokenizer", str(folder / "tokenizer.json"), "--to", str(folder / to)]
    assert prepare_data.main(["slimpajama", *given, *words]) == 0
    return folder / to / "slimpajama"


def test_the_sources_own_splits_are_written_in_order_and_read(corpus: Path) -> None:
    folder = prepare(corpus, "out")
    assert texts(folder, "train", TOKENIZER) == TRAIN
    for split, name in (("val", "validation"), ("test", "test")):
        assert texts(folder, split, TOKENIZER) == HELD_OUT[name][:KEPT]
    assert prepare_data.main(["slimpajama", "--verify", "--to", str(corpus / "out")]) == 0
    data = SlimPajamaData({"manifest": "slimpajama/manifest.json"}, 4, 64, 1, data_root=corpus / "out")
    ids, following = data.train_batch(0)
    assert ids.shape == (4, 64) and (ids[:, 1:] == following[:, :-1]).all(), "windows are packed across documents"
    assert all(next(iter(data.evaluation_batches(split)))[0].shape == (4, 64) for split in ("train", "val", "test"))


@pytest.mark.parametrize("documents", [10, 57])
def test_the_document_that_reaches_the_tokens_is_the_last(corpus: Path, documents: int) -> None:
    end, length = ENDS[documents - 1], LENGTHS[documents - 1]
    for tokens, count in ((end, documents), (end - length + 1, documents), (end + 1, documents + 1)):
        folder = prepare(corpus, str(tokens), "--max-tokens", str(tokens))
        assert texts(folder, "train", TOKENIZER) == TRAIN[:count]


def test_a_source_of_one_split_holds_out_its_first_documents(corpus: Path) -> None:
    (corpus / "single").mkdir()
    (corpus / "single" / "part.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TRAIN))
    folder = prepare(corpus, "out", "--max-tokens", "1000", source="single")
    found = [text for split in ("val", "test", "train") for text in texts(folder, split, TOKENIZER)]
    assert found == TRAIN[: len(found)] and len(texts(folder, "val", TOKENIZER)) == KEPT


def breaking(rows: Any, breaks_at: float) -> Any:
    """Return the rows of a streaming data set, which fail before a document."""

    def passed(row: dict[str, Any], place: int) -> dict[str, Any]:
        if place == breaks_at:
            raise ConnectionError("the line is dead")
        return row

    return rows.map(passed, with_indices=True)


@pytest.mark.parametrize("breaks_at", [5, 30])
def test_a_download_that_broke_off_leaves_no_half_shard_and_is_finished(corpus, monkeypatch, breaks_at):
    import datasets

    expected = content(prepare(corpus, "whole"))
    load, places = datasets.load_dataset, iter([breaks_at, math.inf])

    def loaded(*names: Any, **options: Any) -> dict[str, Any]:
        rows = load(*names, **options)
        return {**rows, "train": breaking(rows["train"], next(places))}

    monkeypatch.setattr(datasets, "load_dataset", loaded)
    with pytest.raises(UsageError, match=rf"split train: broke off at document {breaks_at}: the line is dead"):
        prepare(corpus, "cut")
    left = content(corpus / "cut" / "slimpajama")
    shards = {name for name in left if name.endswith(".bin")}
    assert len(shards) == breaks_at // BLOCK and all(left[name] == expected[name] for name in shards)
    assert not any(name.endswith(".part") for name in left) and "manifest.json" not in left
    times = {path: path.stat().st_mtime_ns for path in corpus.glob("cut/slimpajama/*.bin")}
    assert content(prepare(corpus, "cut")) == expected
    assert all(path.stat().st_mtime_ns == changed for path, changed in times.items()), "a whole shard was written again"


def test_the_hub_that_does_not_answer_and_the_tokenizer_that_is_absent_are_told(corpus, monkeypatch):
    import datasets

    def hub(name: str, revision: str, streaming: bool) -> None:
        assert (name, revision, streaming) == (text_sources.SLIMPAJAMA, text_sources.SLIMPAJAMA_REVISION, True)
        raise ConnectionError("couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", hub)
    to = ["--to", str(corpus / "out")]
    own = ["--tokenizer", str(corpus / "tokenizer.json")]
    assert "couldn't reach the hub" in refusal("slimpajama", "--download", *own, *to)
    assert "run: hf download hf-internal-testing/llama-tokenizer" in refusal("slimpajama", "--from", "x", *to)


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({"train.parquet": b"PAR1 and no more"}, "corpus-2"),
        ({"test.jsonl": b'{"text": "a"}\n'}, "splits test, expected one called 'train'"),
        ({"train.jsonl": b'{"body": "a"}\n' * 40}, "columns body, expected a text in one called 'text'"),
    ],
)
def test_a_wrong_folder_is_refused(corpus: Path, files: dict[str, bytes], part: str) -> None:
    (corpus / "corpus-2").mkdir()
    for name, inside in files.items():
        (corpus / "corpus-2" / name).write_bytes(inside)
    assert part in said_of(lambda: prepare(corpus, "out", source="corpus-2"))
    assert not list(corpus.glob("out/slimpajama/*.bin"))
