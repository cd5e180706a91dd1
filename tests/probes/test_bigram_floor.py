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
from paper_repro.cells.tasks import Cell, Outcome, task_of
from paper_repro.datamodules.counter_based import data_of
from paper_repro.datamodules.documents import DocumentData
from paper_repro.datamodules.token_shards import write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.metrics.counts import BigramCounts
from paper_repro.probes.floors import counted_triples
from paper_repro.probes.thinking import scored_batches
from paper_repro.tests.support.ebt_language import WORDS


def prose(seed: int, documents: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 30))) for _ in range(documents)]


TRAIN, VAL = prose(0, 200), prose(1, 40)
TOKENIZER = BytePairTokenizer.train(TRAIN, 280)
SIZES = {"batch_size": 8, "window": 16, "num_evaluation_batches": 3}
LISTOPS = {"_target_": "paper_repro.datamodules.listops.ListOps", "modulus": 10, "num_train": 300, "num_test": 10}
DATA: dict[str, dict[str, Any]] = {
    "documents.DocumentData": {"files": {"manifest": "corpus/manifest.json"}},
    "text.TokenData": {"files": {"manifest": "corpus/manifest.json"}},
    "listops.ListOpsData": {"task": LISTOPS},
}
DOCUMENTS, STREAM, _ = DATA
POINTS = {"_target_": "paper_repro.datamodules.gaussian_process.GaussianProcessData"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "corpus", {"train": TRAIN, "val": VAL}, {"name": "test"}, TOKENIZER, say=lambda _: None)
    return tmp_path


def config(root: Path, kind: str = DOCUMENTS, floor: str = "BigramFloor", **task: Any) -> dict[str, Any]:
    return {
        "task": {"_target_": f"paper_repro.probes.floors.{floor}", **task},
        "data": {"_target_": f"paper_repro.datamodules.{kind}", **DATA[kind], **SIZES},
        "machine": {"data_root": str(root)},
        "seed": 0,
    }


def outcome(config: dict[str, Any]) -> Outcome:
    (found,) = task_of(config).run([Cell("0" * 16, config)], Path(), SimpleNamespace())  # type: ignore[arg-type]
    return found


def texts_of(data: Any) -> list[list[int]]:
    """What is counted: documents as they are cut, or windows of a stream with the token that follows."""
    if isinstance(data, DocumentData):
        return [ids[:17] for ids in TOKENIZER.encode_many(TRAIN)]
    stream = data.streams["train"]
    length = (len(stream) - 1) // 16 * 16 + 1
    ids = (stream[:length] if isinstance(stream, Tensor) else stream.window(0, length)).tolist()
    return [ids[start : start + 17] for start in range(0, length - 1, 16)]


def size_of(data: Any) -> int:
    return len(data.task.vocabulary) if hasattr(data, "task") else TOKENIZER.vocabulary_size


def pairs_of(texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    pairs = [pair for ids in texts for pair in itertools.pairwise(ids)]
    return torch.tensor([x for x, _ in pairs]), torch.tensor([y for _, y in pairs])


def by_hand(data: Any, batches: Any, weight: float) -> tuple[float, float]:
    """Cross-entropy of bigram and unigram, pair by pair."""
    texts = texts_of(data)
    pairs = Counter(pair for ids in texts for pair in itertools.pairwise(ids))
    before = Counter(ids[index] for ids in texts for index in range(len(ids) - 1))
    after = Counter(token for ids in texts for token in ids[1:])
    total = sum(after.values())
    scored = [(int(x), int(y)) for x, y in zip(*counted_triples(batches)[1:], strict=True)]
    bigram = unigram = 0.0
    for x, y in scored:
        single = (after[y] + 1) / (total + size_of(data))
        relative = pairs[x, y] / before[x] if before[x] else single
        bigram -= math.log(weight * relative + (1 - weight) * single)
        unigram -= math.log(single)
    return bigram / len(scored), unigram / len(scored)


@pytest.mark.parametrize("kind", DATA)
def test_the_bigram_is_a_count_by_hand_of_what_is_read_in_training(root: Path, kind: str) -> None:
    metrics, data = outcome(config(root, kind)).metrics, data_of(config(root, kind))
    texts = texts_of(data)
    assert metrics["counted_tokens"] == sum(len(ids) - 1 for ids in texts)
    kept = BigramCounts.of(*pairs_of([ids for index, ids in enumerate(texts) if index % 20 != 19]), size_of(data))
    assert 0 < metrics["bigram_weight"] == kept.best_weight(*pairs_of(texts[19::20])) < 1
    expected = by_hand(data, data.evaluation_batches("val"), metrics["bigram_weight"])
    assert (metrics["val_loss"], metrics["val_unigram_loss"]) == pytest.approx(expected)
    assert metrics["val_loss"] < metrics["val_unigram_loss"] < math.log(size_of(data))


@pytest.mark.parametrize("kind", [DOCUMENTS, STREAM])
def test_the_trigram_is_a_count_by_hand_of_each_window_with_the_two_tokens_before(root: Path, kind: str) -> None:
    metrics, data = outcome(config(root, kind, "TrigramFloor")).metrics, data_of(config(root, kind))
    texts, size = texts_of(data), size_of(data)
    kept = [ids for index, ids in enumerate(texts) if index % 20 != 19]
    pair_weight = BigramCounts.of(*pairs_of(kept), size).best_weight(*pairs_of(texts[19::20]))
    counts = BigramCounts.of(*pairs_of(texts), size)
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


@pytest.mark.parametrize("kind", [DOCUMENTS, STREAM])
def test_only_the_first_tokens_are_counted_where_that_is_asked(root: Path, kind: str) -> None:
    assert 800 < outcome(config(root, kind, most_tokens=1000)).metrics["counted_tokens"] <= 1000
    with pytest.raises(UsageError, match="at least 20 documents or windows"):
        outcome(config(root, kind, most_tokens=40))


def test_other_data_are_refused_before_anything_is_run(root: Path) -> None:
    wrong = {**config(root), "data": POINTS}
    for configs in (([wrong], []), ([], [wrong])):
        with pytest.raises(CannotBuildError, match="the data are GaussianProcessData"):
            count_here(*configs)


def test_sets_of_texts_are_floored_on_the_places_where_models_are_scored(root: Path) -> None:
    given = config(root, sets=["validation", "dyck-generated", "squad"], num_texts=5)
    found, data = outcome(given), data_of(given)
    for name in ("validation", "dyck-generated"):
        expected = by_hand(data, scored_batches(data, name, 5, 5), found.metrics["bigram_weight"])
        assert (found.metrics[f"{name}_loss"], found.metrics[f"{name}_unigram_loss"]) == pytest.approx(expected)
    assert set(found.unavailable) == {"squad_loss", "squad_unigram_loss"}


def test_a_set_that_is_damaged_is_refused_and_not_left_out(root: Path) -> None:
    (root / "gsm8k").mkdir()
    (root / "gsm8k" / "test.jsonl").write_text('{"question": "Who?"}\n')
    with pytest.raises(UsageError, match="expected question, answer"):
        outcome(config(root, sets=["gsm8k"]))
