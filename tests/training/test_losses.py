import math

import pytest
import torch

from paper_repro.training.watch import LossLog

CPU = torch.device("cpu")


@pytest.mark.parametrize("steps", [1, 7, 99, 100, 101, 250, 3000])
def test_curve_holds_the_mean_of_every_hundredth_of_the_run(steps):
    log = LossLog(2, steps, CPU)
    values = torch.arange(steps, dtype=torch.float64).sin() + 2
    for step in range(steps):
        log.add(step, torch.stack([values[step], -values[step]]))
    curve = log.curve(0)
    assert len(curve) == min(steps, 100)
    assert curve[-1][0] == steps
    before = 0
    for done, mean in curve:
        assert mean == pytest.approx(float(values[before:done].mean()), rel=1e-12)
        before = done
    assert log.curve(1) == [(done, -mean) for done, mean in curve]


def test_first_non_finite_step_is_kept_and_ends_the_curve():
    log = LossLog(3, 10, CPU)
    for step in range(10):
        log.add(step, torch.tensor([1.0, math.nan if step in (4, 6) else 1.0, math.inf if step == 9 else 1.0]))
    assert log.diverged() == [None, 4, 9]
    assert [done for done, _ in log.curve(1)] == [1, 2, 3, 4]
    assert len(log.curve(0)) == 10
    assert all(math.isfinite(value) for model in range(3) for _, value in log.curve(model))
