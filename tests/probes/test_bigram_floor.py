import itertools
import math
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.cells.estimates import CannotBuildError, count_here
from paper_repro.cells.tasks import FINISHED, Cell, task_of
from paper_repro.datamodules.documents import DocumentData
from paper_repro.datamodules.text import TokenData
from paper_repro.datamodules.token_shards import write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.metrics.counts import BigramCounts
from paper_repro.probes.floors import counted_triples
from paper_repro.probes.thinking import scored_batches

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran"]


def prose(seed: int, documents: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 30))) for _ in range(documents)]


TRAIN, VAL = prose(0, 200), prose(1, 40)
TOKENIZER = BytePairTokenizer.train(TRAIN, 280)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "corpus", {"train": TRAIN, "val": VAL}, {"name": "test"}, TOKENIZER, say=lambda _: None)
    return tmp_path


def config(root: Path, reader: type = DocumentData, **others: Any) -> dict[str, Any]:
    data = {
        "_target_": f"{reader.__module__}.{reader.__name__}",
        "files": {"manifest": "corpus/manifest.json"},
        "batch_size": 8,
        "window": 16,
        "num_evaluation_batches": 3,
    }
    task = {"_target_": "paper_repro.probes.floors.BigramFloor", **others}
    return {"task": task, "data": data, "machine": {"data_root": str(root)}, "model": {"width": 8}, "seed": 0}


def measured(config: dict[str, Any]) -> dict[str, float]:
    (outcome,) = task_of(config).run([Cell("0" * 16, config)], Path(), SimpleNamespace())
    assert outcome.status == FINISHED and set(outcome.data_hashes) == {"manifest", "tokenizer"}
    return outcome.metrics


def by_hand(texts: list[list[int]], scored: list[tuple[int, int]], weight: float) -> tuple[float, float]:
    """Cross-entropy of bigram and unigram, pair by pair."""
    pairs = Counter(pair for ids in texts for pair in itertools.pairwise(ids))
    before = Counter(ids[index] for ids in texts for index in range(len(ids) - 1))
    after = Counter(token for ids in texts for token in ids[1:])
    size, total = TOKENIZER.vocabulary_size, sum(after.values())
    bigram = unigram = 0.0
    for x, y in scored:
        single = (after[y] + 1) / (total + size)
        relative = pairs[x, y] / before[x] if before[x] else single
        bigram -= math.log(weight * relative + (1 - weight) * single)
        unigram -= math.log(single)
    return bigram / len(scored), unigram / len(scored)


def test_documents_are_counted_as_they_are_cut_for_training(root: Path) -> None:
    metrics = measured(config(root))
    cut = [ids[:17] for ids in TOKENIZER.encode_many(TRAIN)]
    assert any(len(ids) < 17 for ids in cut) and metrics["counted_tokens"] == sum(len(ids) - 1 for ids in cut)
    data = DocumentData({"manifest": "corpus/manifest.json"}, 8, 16, 3, data_root=root)
    scored = [(int(x), int(y)) for x, y in zip(*counted_triples(data.evaluation_batches("val"))[1:], strict=True)]
    assert len(scored) == sum(int((following >= 0).sum()) for _, following in data.evaluation_batches("val"))
    assert 0 < metrics["bigram_weight"] < 1
    expected = by_hand(cut, scored, metrics["bigram_weight"])
    assert (metrics["val_loss"], metrics["val_unigram_loss"]) == pytest.approx(expected)
    assert metrics["val_loss"] < metrics["val_unigram_loss"] < math.log(TOKENIZER.vocabulary_size)


def test_a_stream_is_counted_window_by_window(root: Path) -> None:
    metrics = measured(config(root, TokenData))
    data = TokenData({"manifest": "corpus/manifest.json"}, 8, 16, 3, data_root=root)
    stream = data.streams["train"]
    most = (len(stream) - 1) // 16 * 16
    assert metrics["counted_tokens"] == most
    ids = stream.window(0, most + 1).tolist()
    scored = [(int(x), int(y)) for x, y in zip(*counted_triples(data.evaluation_batches("val"))[1:], strict=True)]
    expected = by_hand([ids], scored, metrics["bigram_weight"])
    assert (metrics["val_loss"], metrics["val_unigram_loss"]) == pytest.approx(expected)
    windows = [ids[start : start + 17] for start in range(0, most, 16)]
    held_out = windows[19::20]
    kept = [window for index, window in enumerate(windows) if index % 20 != 19]
    counts = BigramCounts.of(*pairs_of(kept), TOKENIZER.vocabulary_size)
    assert len(held_out) > 2 and metrics["bigram_weight"] == counts.best_weight(*pairs_of(held_out))


def pairs_of(texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    pairs = [pair for ids in texts for pair in itertools.pairwise(ids)]
    return torch.tensor([x for x, _ in pairs]), torch.tensor([y for _, y in pairs])


@pytest.mark.parametrize("reader", [DocumentData, TokenData])
def test_only_the_first_tokens_are_counted_where_that_is_asked(root: Path, reader: type) -> None:
    metrics = measured(config(root, reader, most_tokens=1000))
    assert 800 < metrics["counted_tokens"] <= 1000


def test_what_cannot_be_counted_is_refused(root: Path) -> None:
    for reader, most in ((DocumentData, 40), (TokenData, 319), (TokenData, 1)):
        with pytest.raises(UsageError, match="at least 20 documents or windows"):
            measured(config(root, reader, most_tokens=most))
    assert measured(config(root, TokenData, most_tokens=320))["counted_tokens"] == 320
    points = {"_target_": "paper_repro.datamodules.gaussian_process.GaussianProcessData"}
    with pytest.raises(UsageError, match="takes TextData or ListOpsData, the data are GaussianProcessData"):
        measured({**config(root), "data": points})
    for configs in (([{**config(root), "data": points}], []), ([], [{**config(root), "data": points}])):
        with pytest.raises(CannotBuildError, match="the data are GaussianProcessData"):  # before anything is run
            count_here(*configs)
    with pytest.raises(UsageError, match="most_tokens"):
        task_of(config(root, most_tokens=0))


def test_sets_of_texts_are_floored_on_the_places_where_models_are_scored(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("paper_repro.base.files.DATA", tmp_path / "nowhere")
    monkeypatch.delenv("PAPER_REPRO_DATA", raising=False)
    sets = ["validation", "dyck-generated", "squad"]
    whole = config(root, sets=sets, num_texts=5)
    (outcome,) = task_of(whole).run([Cell("0" * 16, whole)], Path(), SimpleNamespace())
    data = DocumentData({"manifest": "corpus/manifest.json"}, 8, 16, 3, data_root=root)
    cut = [ids[:17] for ids in TOKENIZER.encode_many(TRAIN)]
    for name in ("validation", "dyck-generated"):
        scored = [(int(x), int(y)) for x, y in zip(*counted_triples(scored_batches(data, name, 5, 5))[1:], strict=True)]
        expected = by_hand(cut, scored, outcome.metrics["bigram_weight"])
        assert (outcome.metrics[f"{name}_loss"], outcome.metrics[f"{name}_unigram_loss"]) == pytest.approx(expected)
    assert set(outcome.unavailable) == {"squad_loss", "squad_unigram_loss"}
    with pytest.raises(UsageError, match="sets"):
        task_of(config(root, sets=["validation", "validation"]))


def test_a_set_that_is_damaged_is_refused_and_not_left_out(root: Path) -> None:
    (root / "gsm8k").mkdir()
    (root / "gsm8k" / "test.jsonl").write_text('{"question": "Who?"}\n')
    with pytest.raises(UsageError, match="expected question, answer"):
        measured(config(root, sets=["gsm8k"]))


def test_the_trigram_is_a_count_by_hand_of_each_window_with_the_two_tokens_before(root: Path) -> None:
    for reader in (DocumentData, TokenData):
        given = config(root, reader)
        metrics = measured({**given, "task": {"_target_": "paper_repro.probes.floors.TrigramFloor"}})
        data = reader({"manifest": "corpus/manifest.json"}, 8, 16, 3, data_root=root)
        if reader is DocumentData:
            texts = [ids[:17] for ids in TOKENIZER.encode_many(TRAIN)]
        else:
            stream = data.streams["train"]
            ids = stream.window(0, (len(stream) - 1) // 16 * 16 + 1).tolist()
            texts = [ids[start : start + 17] for start in range(0, len(ids) - 1, 16)]
        kept = [ids for index, ids in enumerate(texts) if index % 20 != 19]
        pair_weight = BigramCounts.of(*pairs_of(kept), TOKENIZER.vocabulary_size).best_weight(
            *pairs_of([ids for index, ids in enumerate(texts) if index % 20 == 19])
        )
        counts = BigramCounts.of(*pairs_of(texts), TOKENIZER.vocabulary_size)
        triples = Counter(tuple(ids[place : place + 3]) for ids in texts for place in range(len(ids) - 2))
        contexts = Counter(tuple(ids[place : place + 2]) for ids in texts for place in range(len(ids) - 2))
        total, number, weight = 0.0, 0, metrics["trigram_weight"]
        for ids, following in data.evaluation_batches("val"):
            for row, wanted in zip(ids.tolist(), following.tolist(), strict=True):
                for place, (y, z) in enumerate(zip(row, wanted, strict=True)):
                    if z == -100:
                        continue
                    single = float(counts.bigram(torch.tensor([y]), torch.tensor([z]), pair_weight))
                    before = (row[place - 1], y) if place else ()
                    seen = contexts[before]
                    total -= math.log(weight * triples[*before, z] / seen + (1 - weight) * single if seen else single)
                    number += 1
        assert 0 < weight < 1 and metrics["val_loss"] == pytest.approx(total / number, rel=1e-9)
