import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Cell
from paper_repro.tests.training.doubles import NOISY, by_hand, weights
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
