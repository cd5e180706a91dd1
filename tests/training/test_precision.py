from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paper_repro.base.errors import UsageError
from paper_repro.cells import planned
from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.training.build import build
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


@pytest.mark.slow
def test_a_language_model_trains_and_evaluates_in_bf16_mixed_precision(recorder, tmp_path):
    cache = f"machine.cache={tmp_path / 'cache'}"
    outcomes, weights = {}, {}
    for precision in ("32-true", "bf16-mixed"):
        outcomes[precision], weights = trained(recorder, tmp_path / precision, f"training.precision={precision}", cache)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    full, mixed = (outcome.curves["training_loss"] for outcome in outcomes.values())
    assert mixed[-1][1] < mixed[0][1] - 0.2
    assert mixed != full, "autocast was not on"
    # bfloat16 keeps 8 bits: 0.4 % per product, most of which averages out over the tokens.
    assert [value for _, value in mixed] == pytest.approx([value for _, value in full], rel=0.02)
    assert outcomes["bf16-mixed"].metrics == pytest.approx(outcomes["32-true"].metrics, rel=0.02)


def test_a_precision_that_a_cpu_replaces_is_refused_before_and_at_the_start(cell, recorder, tmp_path):
    mixed = cell(training__precision="16-mixed")
    for start in (lambda: Fit().check_devices(mixed.config), lambda: Fit().run([mixed], tmp_path, recorder())):
        with pytest.raises(UsageError, match=r"16-mixed: a CPU .*training\.precision=bf16-mixed"):
            start()


@pytest.mark.parametrize("optimizer", ["torch.optim.AdamW", "paper_repro.training.optim.UnitAdamW"])
def test_an_epsilon_that_is_0_in_half_precision_is_refused_and_a_larger_one_trains(optimizer, cell, run, tmp_path):
    def narrow(precision, **eps):
        section = {"_target_": optimizer, "_partial_": True, "lr": 0.01, **eps}
        return cell(training__precision=precision, optimizer=section)

    for eps in ({}, {"eps": 1e-8}):
        with pytest.raises(UsageError, match=r"16-true: optimizer\.eps=1e-08 is 0 in .*optimizer\.eps=1e-4"):
            build(narrow("16-true", **eps))
    build(narrow("bf16-true"))
    assert run([narrow("16-true", eps=1e-4)], tmp_path)[0].status == "finished"
