import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from paper_repro.tests.support import golden
from paper_repro.training.build import build
from paper_repro.training.schedules import Cosine, Exponential

SCHEDULES = golden.files("nrgpt", "schedules*.npz")


def test_a_cosine_with_a_horizon_is_cut_off_after_the_run():
    """EBT's scripts train 100,000 steps on the cosine of a million, the first 10,000 of them warm-up."""
    cut, whole = Cosine(0.1, 0.1, horizon=10.0), Cosine(0.01, 0.1)
    assert [cut.factor(step, 1000) for step in range(1001)] == [whole.factor(step, 10000) for step in range(1001)]
    assert cut.factor(1000, 1000) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 11)) / 2)


def test_a_warm_up_in_steps_is_as_long_in_every_run():
    for steps in (40, 200):
        given = Cosine(warmup_steps=20, final_factor=0.1)
        same = Cosine(warmup_fraction=20 / steps, final_factor=0.1)
        assert [given.factor(step, steps) for step in range(steps)] == [
            same.factor(step, steps) for step in range(steps)
        ]
    assert Cosine(warmup_steps=20).factor(9, 10) == pytest.approx(10 / 21)  # a run that ends before its warm-up
    for wrong in ({"warmup_steps": -1}, {"warmup_steps": 5, "warmup_fraction": 0.1}):
        with pytest.raises(ValueError, match="warm"):
            Cosine(**wrong)


@pytest.mark.parametrize(
    "make",
    [partial(Cosine, warmup_fraction=1.0), partial(Cosine, final_factor=1.5), partial(Exponential, final_factor=0.0)],
)
def test_fractions_outside_their_range_are_refused(make):
    with pytest.raises(ValueError, match=r"must lie in [\[(]0, 1"):
        make()


def rates_of(schedule, lr, steps, asked, cell):
    """What the optimiser of a run of ``steps`` steps is given at each step asked for, those beyond its end included."""
    module = build(cell(lr=lr)).module
    module.schedule = schedule
    module._trainer = SimpleNamespace(max_steps=steps)
    scheduler = module.configure_optimizers()["lr_scheduler"]["scheduler"]
    return [scheduler.base_lrs[0] * scheduler.lr_lambdas[0](step) for step in asked]


@pytest.mark.parametrize("path", SCHEDULES)
@pytest.mark.parametrize(("name", "kind"), [("cosine", Cosine), ("exponential", Exponential)])
def test_language_runs_have_the_authors_rates_and_keep_the_last_one(path, name, kind, cell):
    with np.load(path) as record:
        end, peak, lowest = int(record["decay_iters"]), float(record["lr_max"]), float(record["lr_min"])
        asked, expected = record["iters"].tolist(), record[name]
        schedule = kind(int(record["warmup"]) / end, lowest / peak)
    assert min(asked) < schedule.warmup_fraction * end < end < max(asked)
    assert rates_of(schedule, peak, end, asked, cell) == pytest.approx(expected, rel=1e-12, abs=0)
    assert rates_of(schedule, peak, end, [10 * end], cell) == pytest.approx([lowest], rel=1e-12, abs=0)


@pytest.mark.parametrize("path", SCHEDULES)
def test_listops_runs_have_the_authors_rates_at_every_step(path, cell):
    with np.load(path) as record:
        steps, peak, lowest = int(record["listops_epochs"]), float(record["lr_max"]), float(record["lr_min"])
        expected = record["listops_lr"]
    found = rates_of(Exponential(final_factor=lowest / peak), peak, steps, range(steps), cell)
    assert found == pytest.approx(expected[:steps], rel=1e-12, abs=0)
    # Their scheduler then stays at the rate of step epochs - 1, the last that a run of ours has.
    assert expected[steps:] == pytest.approx(found[-1], rel=1e-12, abs=0)
