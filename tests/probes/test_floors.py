"""Trivial baselines of ListOps, regression and completion, against values found in another way."""

import json
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
from paper_repro.datamodules.listops import ListOps
from paper_repro.probes.image_floors import CompletionFloor, Gaussian, gaussian, harmonic, mean_image
from paper_repro.tests.support.reports import Recorder

DATA = "paper_repro.datamodules."
IMAGES = "paper_repro.datamodules.images"
SOURCE = {"_target_": "paper_repro.datamodules.image_sources.Faces", "size": 24}
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
    data = MaskedImageData(Faces(24), cell=4, batch_size=16, evaluation_batch_size=80)
    masked, whole = next(iter(data.evaluation_batches("test")))
    blank = data.blank(masked)

    def error(filled: torch.Tensor) -> float:
        return float((torch.where(blank, filled, masked) - whole).square().mean())

    assert error(gaussian(data, 64)(masked, blank)) < 0.75 * error(mean_image(data, 64)(masked, blank))


FACES = {"_target_": f"{DATA}images.ImageData", "source": SOURCE}


@pytest.mark.parametrize(
    ("task", "good", "wrong", "rule"),
    [
        ("floors.BigramFloor", LISTOPS, POINTS, {"most_tokens": 0}),
        ("floors.DownstreamFloor", None, POINTS, {"num_fewshot": -1}),
        ("floors.ListOpsFloor", LISTOPS, POINTS, {}),
        ("floors.RegressionFloor", POINTS, {**LISTOPS, "task": EXPRESSIONS}, {"rule": "cubic"}),
        ("floors.SudokuFloor", None, POINTS, {"rule": "guess"}),
        ("floors.VideoFloor", None, FACES, {"rule": "mean"}),
        ("image_floors.CompletionFloor", FACES, FACES, {"rule": "median"}),
        ("image_floors.DenoisingFloor", None, POINTS, {"shown": 0}),
    ],
)
def test_only_the_data_make_the_id_and_other_data_and_unknown_rules_are_refused(
    task: str, good: Any, wrong: dict[str, Any], rule: dict[str, Any]
) -> None:
    given = {"tasks": {"a": "b"}} if "Downstream" in task else {}
    node = {"_target_": f"paper_repro.probes.{task}", **given}
    if good:
        found = {"task": node, "data": good, "model": {}, "seed": 0}
        assert settings(found) == settings({**found, "model": {"width": 8}})
        assert settings(found) != settings({**found, "data": {**good, "seed": 7}})
    with pytest.raises(UsageError, match=f"{task.partition('.')[2]} .*, the data are"):
        measured(task, wrong, **given)
    if rule:
        with pytest.raises(ValueError, match=next(iter(rule))):
            task_of({"task": {**node, **rule}})


def config(rule: str = "visible_mean", kind: str = "MaskedImageData", **data: Any) -> dict[str, Any]:
    task = {"_target_": "paper_repro.probes.image_floors.CompletionFloor", "rule": rule}
    masks = {"cell": 4} if kind == "MaskedImageData" else {}
    given = {"_target_": f"{IMAGES}.{kind}", "source": SOURCE, "batch_size": 16, **masks, **data}
    return {"task": task, "data": given, "model": {"width": 8}, "seed": 0}


def test_blank_pixels_get_a_mean_and_visible_ones_stay(tmp_path: Path) -> None:
    data = MaskedImageData(Faces(24), cell=4, batch_size=16)
    for rule in ("visible_mean", "mean_image"):
        (outcome,) = CompletionFloor(rule).run([Cell("cell", config(rule))], tmp_path, Recorder())
        assert outcome.status == FINISHED
        squares, count = 0.0, 0
        trained = torch.cat([data.train_batch(step)[1] for step in range(64)]).mean(0)  # (1, 24, 24)
        for masked, images in data.evaluation_batches("test"):
            for one, whole in zip(masked, images, strict=True):
                blank = one == 0
                filled = torch.where(blank, one[~blank].mean() if rule == "visible_mean" else trained, one)
                squares, count = squares + float((filled - whole).square().mean()), count + 1
        assert outcome.metrics["test_mse"] == pytest.approx(squares / count, rel=1e-5)
        errors = json.loads((tmp_path / "cell" / "completed.json").read_text())
        assert len(errors) == 16 and outcome.metrics["completed_mse"] == pytest.approx(sum(errors) / 16, rel=1e-3)
        assert {"images.png", "masked.png", "completed.png"} <= set(outcome.attachments)


def test_a_harmonic_completion_is_the_mean_of_its_neighbours() -> None:
    """Each blank pixel is the mean of the neighbours that it has; a plane without slope at the edges stays as it is."""
    data = MaskedImageData(Faces(24), cell=4, batch_size=3)
    whole = data.train_batch(0)[1]  # (B, C, H, H)
    masked = whole * (~data.blank(data.train_batch(0)[0]))
    blank = data.blank(masked)
    found = torch.where(blank, harmonic(data, 1)(masked, blank), masked).double()
    ones = torch.ones(1, 1, *found.shape[-2:], dtype=torch.float64)
    plus = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.float64)[None, None]
    mean = torch.conv2d(found, plus, padding=1) / torch.conv2d(ones, plus, padding=1)
    torch.testing.assert_close(found[blank], mean[blank], atol=1e-6, rtol=0)
    visible = masked[~blank]
    assert visible.min() <= found.min() and found.max() <= visible.max()  # the maximum principle


def test_a_plane_with_its_border_visible_is_completed_without_error() -> None:
    data = MaskedImageData(Faces(24), cell=4, batch_size=1)
    whole = torch.linspace(-1, 1, 24).expand(1, 2, 24, 24).contiguous()
    blank = torch.zeros(1, 1, 24, 24, dtype=torch.bool)
    blank[..., 1:-1, 1:-1] = True
    torch.testing.assert_close(harmonic(data, 1)(whole * ~blank, blank), whole)
    torch.testing.assert_close(harmonic(data, 1)(whole, torch.zeros_like(blank)), whole)
    with pytest.raises(UsageError, match="without a visible pixel"):
        harmonic(data, 1)(whole, torch.ones_like(blank))
