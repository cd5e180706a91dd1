import pytest
import torch

from paper_repro.tests.support.reports import Recorder
from paper_repro.training import watch
from paper_repro.training.machine import Machine
from paper_repro.training.watch import LossLog, Watch

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


def test_the_last_step_is_told_after_its_checkpoint_was_saved():
    """From that word on a request to stop ends the process at once."""
    happened = []

    class Noting(Recorder):
        def progress(self, step, steps, loss):
            happened.append(f"told {step}")

    log = LossLog(1, 2, CPU)
    watching = Watch(log, Machine(progress_every_seconds=0), Noting(), lambda step: happened.append(f"saved {step}"))
    for step in (1, 2):
        log.add(step - 1, torch.zeros(1))
        assert watching.after_step(step)
    assert happened == ["told 1", "saved 2", "told 2"]


def test_a_save_that_takes_long_makes_the_next_one_rarer(monkeypatch):
    """Every step takes a second, a save 10 seconds once the carry is large: at most a twentieth of the time."""
    now, saves = [0.0], []
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])

    def save(step):
        saves.append(step)
        now[0] += 0.1 if step <= 40 else 10

    log = LossLog(1, 1000, CPU)
    watching = Watch(log, Machine(checkpoint_every_seconds=20), Recorder(), save)
    for step in range(1, 600):
        now[0] += 1
        log.add(step - 1, torch.zeros(1))
        watching.after_step(step)
    assert saves == [20, 40, 60, 260, 460]
