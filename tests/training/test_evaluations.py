import contextlib
import math

import pytest
import torch

from paper_repro.cells.tasks import WEIGHTS
from paper_repro.tests.training.doubles import KEEP, NOISY, assert_same_runs, assert_same_weights, weights
from paper_repro.training import checkpoints
from paper_repro.training.build import build
from paper_repro.training.watch import Evaluations

EVERY, STEPS = KEEP["training__evaluate_every"], KEEP["steps"]


def cells_of(cell, kind, **changes):
    seeds = (0, 1, 2) if kind == "stacked" else (0,)
    return [cell(seed=seed, **KEEP | changes) for seed in seeds]


def restored(folder, cell):
    parts = build(cell)
    checkpoints.load_weights(folder / cell.id / WEIGHTS, parts.module, cell.id)
    return parts


@pytest.mark.parametrize("kind", ["single", "stacked"])
def test_the_kept_weights_are_those_of_the_best_evaluation(kind, cell, run, tmp_path):
    cells = cells_of(cell, kind)
    outcomes = run(cells, tmp_path / "whole")
    assert all(EVERY < outcome.metrics["best_step"] < STEPS for outcome in outcomes)
    for index, (one, outcome) in enumerate(zip(cells, outcomes, strict=True)):
        curve = outcome.curves["test_rmse"]
        assert [step for step, _ in curve] == list(range(EVERY, STEPS + 1, EVERY))
        best_step, best = min(curve, key=lambda point: point[1])
        assert (outcome.metrics["best_step"], outcome.metrics["best_test_rmse"]) == (best_step, best)
        assert outcome.metrics["test_rmse"] == curve[-1][1]
        assert outcome.metrics["best_train_rmse"] == dict(outcome.curves["train_rmse"])[best_step]
        parts = restored(tmp_path / "whole", one)
        # One model alone and one of a stack differ in the order of their sums: float32 rounding.
        assert parts.module.evaluate(parts.data)["test_rmse"] == pytest.approx(best, rel=1e-6)
        # The rate is constant, so a run that ends at that step has these weights.
        shorter = cells_of(cell, kind, steps=best_step, training__keep=None, training__evaluate_every=None)
        run(shorter, tmp_path / f"shorter-{index}")
        assert_same_weights(weights(tmp_path / "whole", one), weights(tmp_path / f"shorter-{index}", shorter[index]))


@pytest.mark.parametrize("kind", ["single_with_dropout", "stacked"])
def test_stops_before_and_after_the_best_evaluation_change_nothing(kind, cell, run, tmp_path):
    changes = {"training__accumulate": 3, **NOISY} if "dropout" in kind else {}
    cells = cells_of(cell, kind, **changes)
    whole = run(cells, tmp_path / "whole")
    best = int(whole[0].metrics["best_step"])
    stops = sorted({1, best - 1, best, min(best + 1, STEPS), STEPS})
    stopped = run(cells, tmp_path / "stopped", stops=stops)
    assert_same_runs(stopped, whole, cells, (tmp_path / "stopped", tmp_path / "whole"))


@pytest.mark.parametrize("kind", ["single_with_dropout", "stacked"])
def test_evaluating_while_training_leaves_the_training_alone(kind, cell, run, tmp_path):
    changes = {"training__keep": None} | (NOISY if "dropout" in kind else {})
    cells = cells_of(cell, kind, **changes)
    plain = cells_of(cell, kind, **changes, training__evaluate_every=None)
    watched, unwatched = run(cells, tmp_path / "watched"), run(plain, tmp_path / "unwatched")
    for one, two, which in zip(watched, unwatched, cells, strict=True):
        assert one.metrics == two.metrics and one.metrics.keys() == {"train_rmse", "test_rmse"}
        assert two.curves == {"training_loss": one.curves["training_loss"]}
        assert_same_weights(weights(tmp_path / "watched", which), weights(tmp_path / "unwatched", which))


@pytest.mark.parametrize("kind", ["single", "stacked"])
def test_curves_of_fewer_batches_change_no_metric(kind, cell, run, tmp_path):
    whole = cells_of(cell, kind, training__keep=None)
    fewer = cells_of(cell, kind, training__keep=None, training__evaluation_batches=1)
    found, expected = run(fewer, tmp_path / "fewer"), run(whole, tmp_path / "whole")
    for one, two, which, other in zip(found, expected, fewer, whole, strict=True):
        assert one.metrics == two.metrics
        assert_same_weights(weights(tmp_path / "fewer", which), weights(tmp_path / "whole", other))
        parts = restored(tmp_path / "whole", other)
        for split in parts.data.splits:
            curve, longer = one.curves[f"{split}_rmse"], two.curves[f"{split}_rmse"]
            assert [step for step, _ in curve] == [step for step, _ in longer] == list(range(EVERY, STEPS + 1, EVERY))
            inputs, targets = next(iter(parts.data.evaluation_batches(split)))
            error = (parts.module.model.eval()(inputs) - targets).square().mean().sqrt()
            assert curve[-1][1] == pytest.approx(error.item(), rel=1e-5)
            if split == "train":  # 48 points in batches of 20; of the test split's 16 there is one batch
                assert all(one != two for (_, one), (_, two) in zip(curve, longer, strict=True))


@pytest.mark.parametrize("kind", ["single", "stacked"])
def test_under_bf16_evaluations_are_computed_as_training_is(kind, cell, run, tmp_path):
    cells = cells_of(cell, kind, training__precision="bf16-mixed")
    for one, outcome in zip(cells, run(cells, tmp_path), strict=True):
        parts = restored(tmp_path, one)
        exact = parts.module.evaluate(parts.data)["test_rmse"]
        with torch.autocast("cpu", torch.bfloat16):
            rounded = parts.module.evaluate(parts.data)["test_rmse"]
        assert outcome.metrics["best_test_rmse"] == pytest.approx(rounded, rel=1e-6)
        assert abs(exact - rounded) > 1e-5 * exact
        assert {tensor.dtype for tensor in weights(tmp_path, one).values()} == {torch.float32}


def test_a_metric_that_is_never_finite_keeps_the_last_weights(cell, monkeypatch):
    parts = build(cell(training__evaluate_every=1, training__keep="test_rmse"))
    evaluations = Evaluations([parts], contextlib.nullcontext)
    before = {name: tensor.clone() for name, tensor in parts.module.state_dict().items()}
    metrics = {"train_rmse": 1.0, "test_rmse": math.nan}
    monkeypatch.setattr(parts.module, "evaluate", lambda *_: metrics)
    assert evaluations.finish(0, 4) == metrics
    assert_same_weights(parts.module.state_dict(), before)
