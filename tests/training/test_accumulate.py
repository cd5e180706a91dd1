import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import Cell
from paper_repro.lightning_modules.cem_gaussian_process import CEMGaussianProcess
from paper_repro.tests.training.doubles import NOISY, assert_same_runs, by_hand, weights
from paper_repro.training.build import build


@pytest.mark.parametrize("batches", [1, 3])
def test_a_step_follows_the_mean_gradient_of_its_batches_clipped_once(batches, cell, run, tmp_path):
    item = cell(training__accumulate=batches, training__clip_norm=0.1, **NOISY)
    outcome = run([item], tmp_path)[0]
    parts = build(item)
    losses = by_hand(parts.module, parts.data, parts.training.steps, batches, parts.training.clip_norm)
    # Sums of a few float32 numbers in another order.
    assert [value for _, value in outcome.curves["training_loss"]] == pytest.approx(losses, rel=1e-6)
    torch.testing.assert_close(weights(tmp_path, item), dict(parts.module.state_dict()), rtol=1e-5, atol=1e-6)


def test_a_run_of_three_batches_a_step_stopped_at_several_steps_goes_on_bit_for_bit(cell, run, tmp_path):
    item = cell(training__accumulate=3, **NOISY)
    whole = run([item], tmp_path / "whole")
    stopped = run([item], tmp_path / "stopped", stops=(1, 2, 7, 11))
    assert_same_runs(stopped, whole, [item], (tmp_path / "stopped", tmp_path / "whole"))
    assert len(whole[0].curves["training_loss"]) == 12


def test_every_batch_of_every_step_has_a_seed_of_its_own(cell, run, tmp_path, monkeypatch):
    seeds = []
    loss = CEMGaussianProcess.loss
    monkeypatch.setattr(CEMGaussianProcess, "loss", lambda *args: seeds.append(torch.initial_seed()) or loss(*args))
    run([cell(training__accumulate=2, steps=3)], tmp_path)
    assert len(set(seeds)) == 6
    assert seeds[::2] == [mix(0, "step", step) for step in range(3)]


def test_evaluations_and_checkpoints_come_between_steps(cell, run, tmp_path):
    item = cell(training__accumulate=3, training__evaluate_every=4, machine__checkpoint_every_steps=5)
    outcome = run([item], tmp_path)[0]
    assert [step for step, _ in outcome.curves["test_rmse"]] == [4, 8, 12]
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.ckpt"))
    assert names == ["step-000000010.ckpt", "step-000000012.ckpt"]


def test_batches_that_the_devices_cannot_share_are_refused_with_both_numbers(cell):
    config = cell(training__accumulate=3, machine__devices=2).config
    with pytest.raises(UsageError, match=r"training\.accumulate=3 .*machine\.devices=2.*multiple of 2"):
        build(Cell("odd", config))
