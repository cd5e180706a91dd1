"""Trivial baselines of texts, ListOps, regression and completion, against values found in another way."""

import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import IGNORED
from paper_repro.cells.estimates import count_here
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, task_of
from paper_repro.datamodules.counter_based import data_of
from paper_repro.datamodules.documents import DocumentData
from paper_repro.datamodules.gaussian_process import GaussianProcessData
from paper_repro.datamodules.image_sources import Faces
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.datamodules.listops import ListOps
from paper_repro.datamodules.token_shards import write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.metrics.counts import Counts
from paper_repro.probes import floors
from paper_repro.probes.image_floors import fitted_gaussian, gaussian, harmonic, mean_image
from paper_repro.probes.thinking import scored_batches
from paper_repro.tests.support.ebt_language import WORDS
from paper_repro.tests.support.reports import Recorder

DATA = "paper_repro.datamodules."
SOURCE = {"_target_": "paper_repro.datamodules.image_sources.Faces", "size": 24}
LISTOPS = {"_target_": f"{DATA}listops.ListOpsData", "window": 64, "seed": 0, "batch_size": 4}
EXPRESSIONS = {"_target_": f"{DATA}listops.ListOps", "modulus": 10, "num_train": 3000, "num_test": 100, "seed": 42}
POINTS = {"_target_": f"{DATA}gaussian_process.GaussianProcessData", "num_train": 400, "num_test": 200, "seed": 3}


def outcome(config: dict[str, Any], folder: Path = Path()) -> Outcome:
    (found,) = task_of(config).run([Cell("cell", config)], folder, Recorder())
    assert found.status == FINISHED
    return found


def measured(task: str, data: dict[str, Any], folder: Path = Path(), **given: Any) -> Outcome:
    node = {"_target_": f"paper_repro.probes.{task}", **given}
    return outcome({"task": node, "data": data, "model": {}, "seed": 0}, folder)


def test_the_most_frequent_answer_is_counted_by_outermost_operation() -> None:
    found = measured("floors.ListOpsFloor", {**LISTOPS, "task": EXPRESSIONS}).metrics
    corpus = ListOps(10, num_train=3000, num_test=100).generate()
    best = {}
    for operation in ("max_10", "median_10", "add_10"):
        token = ListOps(10).vocabulary.index(operation)
        best[token] = Counter(item.result for item in corpus.train if item.tokens[0] == token).most_common(1)[0][0]
    right = [best[item.tokens[0]] == item.result for item in corpus.test]
    assert found["accuracy"] == found["accuracy_greedy_padded"] == pytest.approx(np.mean(right))
    assert found["accuracy_max"] > 0.25 > found["accuracy_add"] and found["chance"] == 0.1


def test_mean_and_linear_fit_are_those_of_numpy() -> None:
    data = GaussianProcessData(num_train=400, num_test=200, seed=3)
    points = {
        split: [part.double().numpy() for part in next(iter(data.evaluation_batches(split)))] for split in data.splits
    }
    (x, y), (others, wanted) = points["train"], points["test"]
    mean = measured("floors.RegressionFloor", POINTS).metrics
    assert mean["test_rmse"] == pytest.approx(np.sqrt(np.mean((wanted - y.mean()) ** 2)))
    linear = measured("floors.RegressionFloor", POINTS, rule="linear").metrics
    weights, *_ = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)
    assert linear["test_rmse"] == pytest.approx(
        np.sqrt(np.mean((np.c_[others, np.ones(len(others))] @ weights - wanted) ** 2))
    )
    assert linear["train_rmse"] < mean["train_rmse"]


def test_a_gaussian_of_all_directions_gives_the_conditional_mean() -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(300, 16, generator=draw, dtype=torch.float64) @ torch.randn(
        16, 16, generator=draw, dtype=torch.float64
    )
    fill = fitted_gaussian(images, 15)
    center, covariance = images.mean(0), torch.from_numpy(np.cov(images.numpy().T, bias=True))
    blank = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    blank[..., 2:, :] = True
    hidden = blank.flatten()
    seen = images[0][~hidden] - center[~hidden]
    wanted = center[hidden] + covariance[hidden][:, ~hidden] @ torch.linalg.solve(covariance[~hidden][:, ~hidden], seen)
    image = images[0].view(1, 1, 4, 4)
    torch.testing.assert_close(fill(image * ~blank, blank).flatten()[hidden], wanted)


def test_a_gaussian_of_faces_fills_better_than_their_mean() -> None:
    data = MaskedImageData(Faces(24), cell=4, batch_size=16, evaluation_batch_size=80)
    masked, whole = next(iter(data.evaluation_batches("test")))
    blank = data.blank(masked)

    def error(filled: torch.Tensor) -> float:
        return float((torch.where(blank, filled, masked) - whole).square().mean())

    assert error(gaussian(data)(masked, blank)) < 0.75 * error(mean_image(data)(masked, blank))


FACES = {"_target_": f"{DATA}images.ImageData", "source": SOURCE}


@pytest.mark.parametrize(
    ("task", "wrong", "rule"),
    [
        ("floors.BigramFloor", POINTS, {"num_texts": 0}),
        ("floors.DownstreamFloor", POINTS, {"num_fewshot": -1}),
        ("floors.ListOpsFloor", POINTS, {}),
        ("floors.RegressionFloor", {**LISTOPS, "task": EXPRESSIONS}, {"rule": "cubic"}),
        ("floors.SudokuFloor", POINTS, {"rule": "guess"}),
        ("floors.VideoFloor", FACES, {"rule": "mean"}),
        ("image_floors.CompletionFloor", FACES, {"rule": "median"}),
        ("image_floors.DenoisingFloor", POINTS, {"rule": "median"}),
    ],
)
def test_other_data_and_unknown_rules_are_refused(task: str, wrong: dict[str, Any], rule: dict[str, Any]) -> None:
    given = {"tasks": {"a": "b"}} if "Downstream" in task else {}
    with pytest.raises(UsageError, match=f"{task.partition('.')[2]} .*, the data are"):
        measured(task, wrong, **given)
    if rule:
        with pytest.raises(ValueError, match=next(iter(rule))):
            task_of({"task": {"_target_": f"paper_repro.probes.{task}", **given, **rule}})


MASKED = {"_target_": f"{DATA}images.MaskedImageData", "source": SOURCE, "batch_size": 16, "cell": 4}


@pytest.mark.parametrize("rule", ["visible_mean", "mean_image"])
def test_blank_pixels_get_a_mean_and_visible_ones_stay(tmp_path: Path, rule: str) -> None:
    data = MaskedImageData(Faces(24), cell=4, batch_size=16)
    found = measured("image_floors.CompletionFloor", MASKED, tmp_path, rule=rule)
    trained = torch.cat([data.train_batch(step)[1] for step in range(64)]).mean(0)  # (1, 24, 24)
    squares = []
    for masked, images in data.evaluation_batches("test"):
        for one, whole in zip(masked, images, strict=True):
            blank = one == 0
            filled = torch.where(blank, one[~blank].mean() if rule == "visible_mean" else trained, one)
            squares.append(float((filled - whole).square().mean()))
    assert found.metrics["test_mse"] == pytest.approx(np.mean(squares), rel=1e-5)
    errors = json.loads((tmp_path / "cell" / "completed.json").read_text())
    assert len(errors) == 16 and found.metrics["completed_mse"] == pytest.approx(sum(errors) / 16, rel=1e-3)
    assert {"images.png", "masked.png", "completed.png"} <= set(found.attachments)


def test_a_harmonic_completion_is_the_mean_of_its_neighbours() -> None:
    """Each blank pixel is the mean of the neighbours that it has; a plane without slope at the edges stays as it is."""
    data = MaskedImageData(Faces(24), cell=4, batch_size=3)
    whole = data.train_batch(0)[1]  # (B, C, H, H)
    masked = whole * (~data.blank(data.train_batch(0)[0]))
    blank = data.blank(masked)
    found = torch.where(blank, harmonic(data)(masked, blank), masked).double()
    ones = torch.ones(1, 1, *found.shape[-2:], dtype=torch.float64)
    plus = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.float64)[None, None]
    mean = torch.conv2d(found, plus, padding=1) / torch.conv2d(ones, plus, padding=1)
    torch.testing.assert_close(found[blank], mean[blank], atol=1e-6, rtol=0)
    visible = masked[~blank]
    assert visible.min() <= found.min() and found.max() <= visible.max()  # the maximum principle
    assert torch.equal(harmonic(data)(whole, torch.zeros_like(blank)), whole)


def prose(seed: int, documents: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 30))) for _ in range(documents)]


TRAIN, VAL = prose(0, 200), prose(1, 40)
TOKENIZER = BytePairTokenizer.train(TRAIN, 280)
SIZES = {"batch_size": 8, "window": 16, "num_evaluation_batches": 3}
READERS: dict[str, dict[str, Any]] = {
    "documents.DocumentData": {"files": {"manifest": "corpus/manifest.json"}},
    "text.TokenData": {"files": {"manifest": "corpus/manifest.json"}},
    "listops.ListOpsData": {"task": {**EXPRESSIONS, "num_train": 300, "num_test": 10}},
}
DOCUMENTS, STREAM, _ = READERS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "corpus", {"train": TRAIN, "val": VAL}, {"name": "test"}, TOKENIZER)
    return tmp_path


def counted(root: Path, kind: str = DOCUMENTS, floor: str = "BigramFloor", **task: Any) -> dict[str, Any]:
    return {
        "task": {"_target_": f"paper_repro.probes.floors.{floor}", **task},
        "data": {"_target_": f"{DATA}{kind}", **READERS[kind], **SIZES},
        "machine": {"data_root": str(root)},
        "seed": 0,
    }


def texts_of(data: Any) -> list[list[int]]:
    """What is counted: documents as they are cut, or windows of a stream with the token that follows."""
    if isinstance(data, DocumentData):
        return [ids[:17] for ids in TOKENIZER.encode_many(TRAIN)]
    stream = data.streams["train"]
    length = (len(stream) - 1) // 16 * 16 + 1
    ids = stream[:length].tolist()
    return [ids[start : start + 17] for start in range(0, length - 1, 16)]


def size_of(data: Any) -> int:
    return len(data.task.vocabulary) if hasattr(data, "task") else TOKENIZER.vocabulary_size


def by_hand(data: Any, batches: Any, weights: Sequence[float]) -> float:
    """Cross-entropy of counted groups of tokens, one token at a time; without weights of single tokens."""
    texts, most = texts_of(data), len(weights) + 1
    single = Counter((token,) for ids in texts for token in ids[1:])
    groups = [tuple(ids[at : at + n]) for n in (2, 3) for ids in texts for at in range(len(ids) - n + 1)]
    counts, contexts = single + Counter(groups), Counter(group[:-1] for group in groups)

    def probability(group: tuple[int, ...]) -> float:
        if len(group) == 1:
            return (counts[group] + 1) / (single.total() + size_of(data))
        weight, seen, shorter = weights[len(group) - 2], contexts[group[:-1]], probability(group[1:])
        return weight * counts[group] / seen + (1 - weight) * shorter if seen else shorter

    found = [
        probability((*row[: place + 1], wanted)[-most:])
        for ids, following in batches
        for row, targets in zip(ids.tolist(), following.tolist(), strict=True)
        for place, wanted in enumerate(targets)
        if wanted != IGNORED
    ]
    return -sum(map(math.log, found)) / len(found)


COUNTED = [(kind, "BigramFloor") for kind in READERS] + [(kind, "TrigramFloor") for kind in (DOCUMENTS, STREAM)]


@pytest.mark.parametrize(("kind", "floor"), COUNTED)
def test_a_floor_is_a_count_by_hand_of_what_is_read_in_training(root: Path, kind: str, floor: str) -> None:
    metrics, data = outcome(counted(root, kind, floor)).metrics, data_of(counted(root, kind))
    texts, length = texts_of(data), 2 + (floor == "TrigramFloor")

    def columns(some: list[list[int]]) -> list[Tensor]:
        padded = [[-1, *ids] if length == 3 else ids for ids in some]
        rows = [ids[at : at + length] for ids in padded for at in range(len(ids) - length + 1)]
        return list(torch.tensor(rows).T.contiguous().unbind(0))

    kept = [ids for index, ids in enumerate(texts) if index % 20 != 19]
    weights = Counts.fitted(columns(kept), columns(texts[19::20]), size_of(data)).weights
    batches = list(data.evaluation_batches("val"))
    assert 0 < weights[-1] < 1 and weights[-1] == metrics["bigram_weight" if length == 2 else "trigram_weight"]
    assert metrics["val_loss"] == pytest.approx(by_hand(data, batches, weights), rel=1e-9)
    if length == 2:
        assert metrics["counted_tokens"] == sum(len(ids) - 1 for ids in texts)
        assert metrics["val_unigram_loss"] == pytest.approx(by_hand(data, batches, []))
        assert metrics["val_loss"] < metrics["val_unigram_loss"] < math.log(size_of(data))


@pytest.mark.parametrize("kind", [DOCUMENTS, STREAM])
def test_only_the_first_tokens_are_counted(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "MOST_TOKENS", 1000)
    assert 800 < outcome(counted(root, kind)).metrics["counted_tokens"] <= 1000
    monkeypatch.setattr(floors, "MOST_TOKENS", 40)
    with pytest.raises(UsageError, match="at least 20 documents or windows"):
        outcome(counted(root, kind))


def test_other_data_are_refused_before_anything_is_run(root: Path) -> None:
    cell = PlannedCell("c", {**counted(root), "data": POINTS}, (), 0, "c")
    with pytest.raises(UsageError, match="the data are GaussianProcessData"):
        count_here([cell])


def test_sets_of_texts_are_floored_on_the_places_where_models_are_scored(root: Path) -> None:
    given = counted(root, sets=["validation", "dyck-generated", "squad"], num_texts=5)
    found, data = outcome(given), data_of(given)
    for name in ("validation", "dyck-generated"):
        expected = by_hand(data, scored_batches(data, name, 5, 5), [found.metrics["bigram_weight"]])
        assert found.metrics[f"{name}_loss"] == pytest.approx(expected)
        assert f"{name}_unigram_loss" in found.metrics
    assert set(found.unavailable) == {"squad_loss", "squad_unigram_loss"}
