"""Floors of ListOps answers, of regression and of completion by a Gaussian, against values found in another way."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import settings
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, task_of
from paper_repro.datamodules.gaussian_process import GaussianProcessData
from paper_repro.datamodules.image_sources import Faces
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.datamodules.listops import ListOps, ListOpsData
from paper_repro.probes.image_floors import Gaussian, gaussian, mean_image
from paper_repro.tests.support.reports import Recorder

DATA = "paper_repro.datamodules."
LISTOPS = {"_target_": f"{DATA}listops.ListOpsData", "window": 64, "seed": 0, "batch_size": 4}
EXPRESSIONS = {"_target_": f"{DATA}listops.ListOps", "modulus": 10, "num_train": 3000, "num_test": 100, "seed": 42}
POINTS = {"_target_": f"{DATA}gaussian_process.GaussianProcessData", "num_train": 400, "num_test": 200, "seed": 3}


def measured(task: str, data: dict[str, Any], **given: Any) -> Outcome:
    config = {"task": {"_target_": f"paper_repro.probes.{task}", **given}, "data": data, "model": {}, "seed": 0}
    (outcome,) = task_of(config).run([Cell("0" * 16, config)], Path(), Recorder())
    assert outcome.status == FINISHED
    return outcome


def test_the_most_frequent_answer_is_counted_by_outermost_operation() -> None:
    found = measured("floors.ListOpsFloor", {**LISTOPS, "task": EXPRESSIONS}).metrics
    corpus = ListOps(10, num_train=3000, num_test=100).generate()
    best = {}
    for operation in ("max_10", "median_10", "add_10"):
        (token,) = ListOps(10).encode([operation])
        best[token] = Counter(item.result for item in corpus.train if item.tokens[0] == token).most_common(1)[0][0]
    right = [best[item.tokens[0]] == item.result for item in corpus.test]
    assert found["accuracy"] == found["accuracy_greedy_padded"] == pytest.approx(np.mean(right))
    assert found["accuracy_max"] > 0.25 > found["accuracy_add"] and found["chance"] == 0.1


def test_the_bigram_of_listops_is_that_of_its_stream() -> None:
    found = measured("floors.BigramFloor", {**LISTOPS, "task": EXPRESSIONS}).metrics
    data = ListOpsData(ListOps(10, num_train=3000, num_test=100), batch_size=4, window=64)
    stream, weight = data.streams["train"], found["bigram_weight"]
    cut = stream[: (len(stream) - 1) // 64 * 64 + 1].tolist()
    pairs, before, after = Counter(itertools.pairwise(cut)), Counter(cut[:-1]), Counter(cut[1:])
    total = 0.0
    scored = [pair for ids, nexts in data.evaluation_batches("val") for pair in zip(ids, nexts, strict=True)]
    tokens = [(int(x), int(y)) for ids, nexts in scored for x, y in zip(ids, nexts, strict=True)]
    for x, y in tokens:
        unigram = (after[y] + 1) / (len(cut) - 1 + 20)
        total -= np.log(weight * pairs[x, y] / before[x] + (1 - weight) * unigram)
    assert found["val_loss"] == pytest.approx(total / len(tokens), rel=1e-6)
    assert found["val_loss"] < found["val_unigram_loss"]


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
    found = Gaussian.of(images, 15)
    center, covariance = images.mean(0), torch.from_numpy(np.cov(images.numpy().T, bias=True))
    blank = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    blank[..., 2:, :] = True
    hidden = blank.flatten()
    seen = images[0][~hidden] - center[~hidden]
    wanted = center[hidden] + covariance[hidden][:, ~hidden] @ torch.linalg.solve(covariance[~hidden][:, ~hidden], seen)
    image = images[0].view(1, 1, 4, 4)
    torch.testing.assert_close(found.fill(image * ~blank, blank).flatten()[hidden], wanted)


def test_a_gaussian_of_faces_fills_better_than_their_mean() -> None:
    data = MaskedImageData(Faces(24), 4, batch_size=16, evaluation_batch_size=80)
    masked, whole = next(iter(data.evaluation_batches("test")))
    blank = data.blank(masked)

    def error(filled: torch.Tensor) -> float:
        return float((torch.where(blank, filled, masked) - whole).square().mean())

    assert error(gaussian(data, 64)(masked, blank)) < 0.75 * error(mean_image(data, 64)(masked, blank))
    with pytest.raises(UsageError, match="4 training batches or more, num_batches is 1"):
        gaussian(data, 1)


@pytest.mark.parametrize("task", ["floors.ListOpsFloor", "floors.RegressionFloor"])
def test_only_the_data_make_the_id_and_other_data_are_refused(task: str) -> None:
    config = {"task": {"_target_": f"paper_repro.probes.{task}"}, "data": POINTS, "model": {}, "seed": 0}
    assert settings(config) == settings({**config, "model": {"width": 8}})
    wrong = POINTS if "ListOps" in task else {**LISTOPS, "task": EXPRESSIONS}
    with pytest.raises(UsageError, match="the data are"):
        measured(task, wrong)
    if "Regression" in task:
        with pytest.raises(ValueError, match="rule"):
            measured(task, POINTS, rule="cubic")
