from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paper_repro.base.errors import UsageError
from paper_repro.cells import planned
from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.training.fit import Fit

SMALL = [
    *("model.width=32", "model.num_steps=2", "data.window=32", "data.batch_size=8", "data.num_evaluation_batches=2"),
    *("data.task.num_train=300", "data.task.num_test=20", "training.steps=30", "optimizer.lr=0.003"),
    "probes.accuracy=null",
]


def trained(recorder, folder: Path, *words: str) -> tuple[Outcome, dict[str, torch.Tensor]]:
    cell = planned.single("nrgpt/listops", [*SMALL, *words], 0)
    outcome = Fit().run([Cell(cell.id, cell.config)], folder, recorder())[0]
    return outcome, load_file(next(folder.rglob("weights.safetensors")))


def test_gradients_in_bf16_are_clipped_before_a_fused_optimiser_too(recorder, tmp_path):
    """With an epsilon far above its second moments, AdamW's steps are as large as the gradients."""
    mixed = ("training.precision=bf16-mixed", f"machine.cache={tmp_path / 'cache'}", "training.steps=5")
    weights = {}
    for fused in ("false", "true"):
        for clip in ("0.01", "null"):
            settings = (f"machine.fused_optimizer={fused}", f"training.clip_norm={clip}", "+optimizer.eps=1.0")
            folder = tmp_path / f"{fused} {clip}"
            weights[fused, clip] = trained(recorder, folder, *mixed, *settings, "optimizer.lr=10.0")[1]
    for clip in ("0.01", "null"):
        for name, plain in weights["false", clip].items():
            torch.testing.assert_close(weights["true", clip][name], plain, rtol=1e-2, atol=1e-4)
    apart = [(weights["true", "null"][name] - part).abs().max() for name, part in weights["true", "0.01"].items()]
    assert max(apart) > 0.1, "steps were cut"


def test_a_precision_that_a_cpu_replaces_is_refused_before_and_at_the_start(cell, recorder, tmp_path):
    mixed = cell(training__precision="16-mixed")
    for start in (lambda: Fit().check_devices(mixed.config), lambda: Fit().run([mixed], tmp_path, recorder())):
        with pytest.raises(UsageError, match=r"16-mixed: a CPU .*training\.precision=bf16-mixed"):
            start()
