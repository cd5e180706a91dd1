from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.identity import IGNORED
from paper_repro.datamodules import documents as documents_module
from paper_repro.datamodules.documents import DocumentData
from paper_repro.datamodules.token_shards import write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.tests.support.prepared import said_of

TEXTS = [f"Document {index} says {'word ' * (index % 9)}and ends." for index in range(70)]
TOKENIZER = BytePairTokenizer.train(TEXTS, 300)
IDS = list(TOKENIZER.encode_many(TEXTS))
TRAIN, VAL = IDS[:50], IDS[50:]
WINDOW, BATCH = 12, 4
END = 0


def write(root: Path, train: Sequence[str] = TEXTS[:50], val: Sequence[str] = TEXTS[50:], size: int = 100) -> None:
    write_shards(root / "corpus", {"train": train, "val": val}, {"name": "test"}, TOKENIZER, size)


def opened(root: Path, **others: Any) -> DocumentData:
    sizes = {"batch_size": BATCH, "window": WINDOW, "num_evaluation_batches": 3}
    return DocumentData({"manifest": "corpus/manifest.json"}, data_root=root, **{**sizes, **others})


@pytest.fixture
def data(tmp_path: Path) -> DocumentData:
    write(tmp_path)
    return opened(tmp_path)


def rows_of(batch: tuple[torch.Tensor, torch.Tensor]) -> list[list[int]]:
    """The documents of a batch as they were cut, from its ids and its last target that counts."""
    found = []
    for ids, following in zip(*batch, strict=True):
        counted = int((following != IGNORED).sum())
        found.append([*ids[:counted].tolist(), int(following[counted - 1])])
    return found


def test_a_row_is_one_document_cut_and_padded_and_padding_has_no_target(data: DocumentData) -> None:
    cut = {tuple(document[: WINDOW + 1]) for document in TRAIN}
    for step in range(10):
        ids, following = data.train_batch(step)
        for row, targets in zip(ids.tolist(), following.tolist(), strict=True):
            counted = [target for target in targets if target != IGNORED]
            assert (row[0], *counted) in cut
            assert row[1 : len(counted)] == counted[:-1] and targets[len(counted) :] == [IGNORED] * (12 - len(counted))
            padding = row[len(counted) + 1 :]
            assert padding == [END] * len(padding) and END not in counted


def test_each_epoch_reads_every_document_once_in_an_order_of_its_own(data: DocumentData) -> None:
    rows = [row for step in range(25) for row in rows_of(data.train_batch(step))]  # two epochs; 50 is no multiple of 4
    wanted = sorted(document[: WINDOW + 1] for document in TRAIN)
    first, second = rows[:50], rows[50:]
    assert sorted(first) == sorted(second) == wanted
    assert first not in (second, wanted)


def test_evaluation_is_a_fixed_set_of_documents_each_at_most_once(tmp_path: Path) -> None:
    write(tmp_path)

    def evaluated(**others: Any) -> list[list[int]]:
        return [row for batch in opened(tmp_path, **others).evaluation_batches("val") for row in rows_of(batch)]

    some = evaluated()
    assert len(some) == 3 * BATCH and some == evaluated(seed=7) == evaluated(batch_size=6, num_evaluation_batches=2)
    assert some != evaluated(evaluation_seed=1)
    everything = sorted(document[: WINDOW + 1] for document in VAL)
    assert sorted(evaluated(num_evaluation_batches=100)) == sorted(evaluated(num_evaluation_batches=None)) == everything


def test_documents_are_found_once_and_again_when_a_shard_changed(tmp_path, monkeypatch):
    write(tmp_path)
    calls: list[int] = []
    found = documents_module.document_lengths
    monkeypatch.setattr(documents_module, "document_lengths", lambda *a: calls.append(1) or found(*a))
    for _ in range(3):
        opened(tmp_path, cache=tmp_path / "cache").train_batch(3)
    assert len(calls) == 2, "one call a split"
    (tmp_path / "other").mkdir()
    (tmp_path / "corpus").rename(tmp_path / "other" / "corpus")
    write(tmp_path, train=TEXTS[10:50])
    assert len(opened(tmp_path, cache=tmp_path / "cache").documents["train"]) == 40


def test_documents_of_less_than_two_tokens_are_left_out(tmp_path: Path) -> None:
    assert len(TOKENIZER.encode("a")) == 1
    write(tmp_path, train=["a", *TEXTS[:3], "", "a"])
    data = opened(tmp_path, batch_size=3)
    assert sorted(rows_of(data.train_batch(0))) == sorted(document[: WINDOW + 1] for document in TRAIN[:3])
    write(tmp_path / "single", train=["a"])
    assert "split 'train' has no document of 2 tokens or more" in said_of(opened(tmp_path / "single").prepare_data)


def test_a_stream_that_does_not_end_with_an_end_of_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "corpus" / "manifest.json"
    path.write_text(path.read_text().replace('"end_of_text": 0', '"end_of_text": 299'))
    assert "expected documents, each followed by the end of text (id 299)" in said_of(opened(tmp_path).prepare_data)
