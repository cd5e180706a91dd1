"""Callbacks of Lightning that a config lists, in a run of ours."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.lightning_modules.cem_gaussian_process import CEMGaussianProcess

LIGHTNING = "lightning.pytorch.callbacks"


def callbacks(cell: Any, **nodes: dict[str, Any]) -> Any:
    named = {name: {**node, "_target_": f"{LIGHTNING}.{node['_target_']}"} for name, node in nodes.items()}
    return cell(steps=12, training__evaluate_every=2, training__callbacks=named)


def test_early_stopping_ends_the_run_and_the_record_says_so(cell, run, tmp_path: Path) -> None:
    stopping: dict[str, Any] = {"_target_": "EarlyStopping", "monitor": "test_rmse", "min_delta": 100.0, "patience": 1}
    stopping["check_on_train_epoch_end"] = False
    (outcome,) = run([callbacks(cell, stop=stopping)], tmp_path)
    assert outcome.note == "a callback ended the training after step 4 of 12"
    assert [step for step, _ in outcome.curves["training_loss"]] == [1, 2, 3, 4]
    assert [step for step, _ in outcome.curves["test_rmse"]] == [2, 4, 4]


def test_the_best_checkpoint_is_kept_beside_ours_and_loads(cell, run, tmp_path: Path) -> None:
    best = {"_target_": "ModelCheckpoint", "monitor": "test_rmse", "filename": "best", "save_on_train_epoch_end": False}
    (outcome,) = run([callbacks(cell, best=best)], tmp_path)
    (path,) = tmp_path.rglob("best.ckpt")
    score = torch.load(path, weights_only=True)["callbacks"]
    (state,) = [value for key, value in score.items() if key.startswith("ModelCheckpoint")]
    lowest = min(value for _, value in outcome.curves["test_rmse"][:-1])
    assert float(state["best_model_score"]) == pytest.approx(lowest)
    assert CEMGaussianProcess.load_from_checkpoint(path).seed == 0
    (plain,) = run([cell(steps=12, training__evaluate_every=2)], tmp_path / "plain")
    assert plain.curves == outcome.curves
