import itertools
import math
from functools import partial

import pytest
import torch

from paper_repro.training.schedules import Constant, Cosine


def test_cosine_without_warmup_is_half_a_cosine_from_one_towards_zero():
    for step in range(3001):
        assert Cosine().factor(step, 3000) == pytest.approx(0.5 * (1 + math.cos(math.pi * step / 3000)), abs=1e-15)
    assert Cosine().factor(0, 3000) == 1.0


def test_cosine_rises_through_the_warmup_then_falls_to_its_final_factor():
    factors = [Cosine(warmup_fraction=0.2, final_factor=0.1).factor(step, 50) for step in range(51)]
    assert factors[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert factors[10] == 1.0
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))
    assert factors[50] == pytest.approx(0.1)


def test_constant_stays_at_one_after_the_warmup():
    assert [Constant().factor(step, 5) for step in range(6)] == [1.0] * 6
    assert [Constant(0.5).factor(step, 4) for step in range(5)] == pytest.approx([1 / 3, 2 / 3, 1, 1, 1])


@pytest.mark.parametrize(
    "make",
    [
        partial(Cosine, warmup_fraction=1.0),
        partial(Cosine, warmup_fraction=-0.1),
        partial(Cosine, final_factor=1.5),
        partial(Constant, warmup_fraction=2),
    ],
)
def test_fractions_outside_their_range_are_refused(make):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1"):
        make()


@pytest.mark.parametrize("schedule", [Constant(), Cosine(), Cosine(warmup_fraction=0.5)])
@pytest.mark.parametrize(("step", "steps"), [(-1, 10), (11, 10), (0, 0)])
def test_steps_outside_the_run_are_refused(schedule, step, steps):
    with pytest.raises(ValueError, match="is not one of"):
        schedule.factor(step, steps)


def test_lightning_gives_each_step_the_rate_of_the_formula(cell, recorder, tmp_path, monkeypatch):
    from paper_repro.training.fit import Fit

    rates = []
    original = torch.optim.AdamW.step

    def noted(self, closure=None):
        rates.append(self.param_groups[0]["lr"])
        return original(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    for cells in ([cell(steps=7)], [cell(steps=7), cell(seed=1, steps=7)]):
        rates.clear()
        Fit().run(cells, tmp_path / str(len(cells)), recorder())
        assert rates == pytest.approx([0.01 * 0.5 * (1 + math.cos(math.pi * step / 7)) for step in range(7)])
