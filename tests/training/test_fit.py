import itertools
import math
import multiprocessing
import re

import pytest
import torch

from paper_repro.base.configs import compose
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Cell, StopRequestedError
from paper_repro.tests.support.reports import Recorder
from paper_repro.tests.training.doubles import DOUBLES_NAME as DOUBLES
from paper_repro.tests.training.doubles import (
    NOISY,
    Small,
    assert_close_runs,
    assert_same_runs,
    by_hand,
    weights,
)
from paper_repro.tests.training.test_energy_training import EXACT
from paper_repro.training import checkpoints
from paper_repro.training.build import build
from paper_repro.training.fit import Fit


def batch_of(cell, **changes):
    return [cell(seed=seed, lr=lr, **changes) for seed, lr in ((0, 0.01), (1, 0.01), (1, 0.003))]


@pytest.mark.parametrize("batches", [1, 3])
def test_a_step_follows_the_mean_gradient_of_its_batches_clipped_once(batches, cell, run, tmp_path):
    module = {"_target_": f"{DOUBLES}.TwoGroups"}
    item = cell(module=module, training__accumulate=batches, training__clip_norm=0.1, **NOISY)
    outcome = run([item], tmp_path)[0]
    parts = build(item)
    losses = by_hand(parts.module, parts.data, parts.training.steps, batches, parts.training.clip_norm)
    # Sums of a few float32 numbers in another order.
    assert [value for _, value in outcome.curves["training_loss"]] == pytest.approx(losses, rel=1e-6)
    torch.testing.assert_close(weights(tmp_path, item), dict(parts.module.state_dict()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_a_damaged_newest_checkpoint_costs_time_but_changes_nothing(count, cell, run, tmp_path):
    cells = batch_of(cell, machine__checkpoint_every_steps=3)[:count]
    whole = run(cells, tmp_path / "whole")
    with pytest.raises(StopRequestedError):
        Fit().run(cells, tmp_path / "damaged", Recorder(8))
    newest = checkpoints.checkpoint_path(tmp_path / "damaged" / "checkpoints", 8)
    newest.write_bytes(newest.read_bytes()[:-20])
    with pytest.warns(UserWarning, match=re.escape(newest.name)):
        result = run(cells, tmp_path / "damaged")
    assert_same_runs(result, whole, cells, (tmp_path / "damaged", tmp_path / "whole"))


def test_one_diverging_model_leaves_the_others_bit_identical(cell, run, tmp_path):
    healthy = [cell(seed=seed) for seed in range(3)]
    sick = [cell(seed=seed, **({"data__poison_from": 5} if seed == 1 else {})) for seed in range(3)]
    first, second = run(healthy, tmp_path / "healthy"), run(sick, tmp_path / "sick")
    assert_same_runs(second[::2], first[::2], sick[::2], (tmp_path / "sick", tmp_path / "healthy"))
    assert second[1].status == "diverged"
    assert "at step 6 of 12" in second[1].note
    assert second[1].metrics == {}
    assert [step for step, _ in second[1].curves["training_loss"]] == [1, 2, 3, 4, 5]
    assert not (tmp_path / "sick" / sick[1].id).exists()


@pytest.mark.parametrize("count", [1, 2])
def test_a_diverged_run_stops_early_and_says_at_which_step(count, cell, tmp_path):
    cells = [cell(seed=seed, data__poison_from=3, steps=500) for seed in range(count)]
    report = Recorder()
    outcomes = Fit().run(cells, tmp_path, report)
    assert all(outcome.status == "diverged" and "at step 4 of 500" in outcome.note for outcome in outcomes)
    assert report.seen[-1][0] == 4
    assert math.isnan(report.seen[-1][2])


@pytest.mark.parametrize("count", [1, 2])
def test_no_memory_is_an_outcome_with_advice(count, cell, run, tmp_path, monkeypatch):
    monkeypatch.setattr(Small, "forward", lambda self, x: torch.empty(1 << 60))
    cells = [cell(seed=seed) for seed in range(count)]
    outcomes = run(cells, tmp_path)
    assert [outcome.status for outcome in outcomes] == ["oom"] * count
    assert ("machine.stack.most" if count == 2 else "smaller data batch") in outcomes[0].note


def test_a_stop_before_the_first_step_saves_nothing(cell, tmp_path):
    class Impatient(Recorder):
        stop_requested = True

    for cells in ([cell()], batch_of(cell)):
        folder, report = tmp_path / str(len(cells)), Impatient()
        with pytest.raises(StopRequestedError):
            Fit().run(cells, folder, report)
        assert not report.seen and not list(folder.rglob("*.ckpt"))


BAR = {"bar": {"_target_": "lightning.pytorch.callbacks.TQDMProgressBar"}}


@pytest.mark.parametrize(
    ("count", "changes", "message"),
    [
        (1, {"training": {"step": 3}}, r"training\.step' \(did you mean 'steps'\?\)"),
        (1, {"training__clip_norm": 0.0}, r"training\.clip_norm=0\.0: expected"),
        (1, {"training__keep": "test_loss"}, r"training\.keep='test_loss': .* \(did you mean 'test_rmse'\?\)"),
        (1, {"machine__micro_batch": 2, **EXACT}, "keeps tensors from step to step"),
        (2, {"machine__compile": True}, r"machine\.stack=null"),
        (2, {"machine__devices": 2, "training__accumulate": 2}, r"machine\.stack=null"),
        (2, {"training__callbacks": BAR}, r"machine\.stack=null"),
    ],
)
def test_a_config_that_cannot_run_is_refused_before_the_first_step(
    count, changes, message, cell, run, tmp_path, monkeypatch
):
    def step(self, closure):
        closure()
        pytest.fail("a step was taken")

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(UsageError, match=message):
        run([cell(seed=seed, **changes) for seed in range(count)], tmp_path)


def test_a_run_with_two_workers_equals_one_without_also_after_stops(cell, run, tmp_path):
    noisy = {**NOISY, "training__accumulate": 2}
    plain, ahead = cell(**noisy), cell(**noisy, machine__data_workers=2)
    expected, found = run([plain], tmp_path / "plain"), run([ahead], tmp_path / "ahead", stops=(1, 5))
    assert_same_runs(found, expected, [plain], (tmp_path / "ahead", tmp_path / "plain"))


def test_what_a_worker_refuses_is_said_in_one_line(cell, run, tmp_path):
    damaged = {"_target_": f"{DOUBLES}.Damaged", "seed": 0}
    with pytest.raises(UsageError) as caught:
        run([cell(data=damaged, machine__data_workers=2)], tmp_path)
    assert str(caught.value) == "batch 3 is damaged: copy the data anew"
    # The error still refers to the loader; workers that are left would keep this process from ending.
    assert not [child for child in multiprocessing.active_children() if child.is_alive()]


def test_gradients_in_bf16_are_clipped_before_a_fused_optimiser_too(cell, run, tmp_path):
    """With an epsilon far above its second moments, AdamW's steps are as large as the gradients."""
    found = {}
    for fused, clip in itertools.product((False, True), (0.01, None)):
        changes = {"training__precision": "bf16-mixed", "training__clip_norm": clip, "machine__fused_optimizer": fused}
        one, folder = cell(steps=5, lr=10.0, optimizer__eps=1.0, **changes), tmp_path / f"{fused} {clip}"
        run([one], folder)
        found[fused, clip] = weights(folder, one)
    for clip in (0.01, None):
        torch.testing.assert_close(found[True, clip], found[False, clip], rtol=1e-2, atol=1e-4)
    apart = [(found[True, None][name] - part).abs().max() for name, part in found[True, 0.01].items()]
    assert max(apart) > 0.1, "steps were cut"


def test_weights_that_blow_up_in_the_last_step_are_divergence_too(cell, run, tmp_path):
    optimizer = {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 1e38}
    (outcome,) = run([cell(steps=1, optimizer=optimizer, training__clip_norm=None)], tmp_path)
    assert outcome.status == "diverged" and "not finite after the last step" in outcome.note


@pytest.mark.parametrize("model", ["gpt", "rgpt_parallel", "ff1", "ff2w"])
def test_stacked_models_drop_what_each_drops_alone(model, run, tmp_path):
    def cell(seed, rate):
        sizes = ["model.width=8", "model.num_heads=2", "model.block_length=12", f"model.dropout={rate}"]
        overrides = [f"model=nrgpt/{model}", *sizes, "training.steps=4", "training.precision=64-true"]
        data = "data={_target_:paper_repro.tests.support.cycles.Cycles,words:65,batch_size:3,window:12,seed:${seed}}"
        return Cell(f"cell-{seed}-{rate}", compose("nrgpt/shakespeare", [*overrides, data], seed))

    cells = [cell(seed, 0.5) for seed in (0, 1)]
    together = run(cells, tmp_path / "together", stops=(2,))
    for one, outcome in zip(cells, together, strict=True):
        alone = run([one], tmp_path / one.id)[0]
        # float64: only the order of sums differs, over 4 steps.
        assert_close_runs(outcome, alone, one, (tmp_path / "together", tmp_path / one.id), 1e-9)
    without = run([cell(0, 0)], tmp_path / "without")[0]
    assert without.metrics["val_loss"] != pytest.approx(together[0].metrics["val_loss"], rel=1e-6)


def test_cells_of_different_models_are_not_stacked(cell, run, tmp_path):
    cells = [cell(seed=0), cell(seed=1, **NOISY)]
    with pytest.raises(UsageError, match=r"differ in model.*machine\.stack\.over"):
        run(cells, tmp_path)
