from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.models import nrgpt
from paper_repro.tests.support.float64 import assert_exact, randomised

SIZES = {"vocabulary_size": 11, "block_length": 9, "width": 6, "num_heads": 2, "num_steps": 3}
RATES = ["full", "identity", "positive_scalar", "psd_skew"]


def _ids() -> Tensor:
    return torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(4))


def _model(**options: Any) -> Any:
    return randomised(nrgpt.NRGPT_H_FF2W(**SIZES, **options))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("schedule", [[1.0, 1.0, 1.0], "learned"])
def test_a_schedule_of_ones_gives_what_none_gives(rate: str, schedule: Any) -> None:
    plain, scheduled = _model(inference_rate=rate), _model(inference_rate=rate, inference_rate_schedule=schedule)
    scheduled.load_state_dict(plain.state_dict(), strict=schedule != "learned")
    if schedule == "learned":
        scheduled.log_step_rates.data.zero_()
    assert_exact(scheduled(_ids()), plain(_ids()))


@pytest.mark.parametrize("rate", RATES)
def test_each_step_takes_its_own_rate_and_steps_beyond_the_last_take_the_last(rate: str) -> None:
    c = [0.5, 2.0, 0.25]
    plain, scheduled = _model(inference_rate=rate), _model(inference_rate=rate, inference_rate_schedule=c)
    states = scheduled.trace(_ids(), num_steps=5).states
    for index, used in enumerate([*c, c[-1], c[-1]]):
        x = states[index]
        assert_exact(states[index + 1], x + used * (plain.step(x) - x))
        assert_exact(states[index + 1], scheduled.step(x, index))
    assert_exact(scheduled.states(_ids()), states[:4])


def test_a_learned_schedule_is_one_positive_parameter_a_step_with_a_gradient() -> None:
    model = _model(inference_rate_schedule="learned")
    assert model.log_step_rates.shape == (3,)
    model(_ids()).square().sum().backward()
    assert bool((model.log_step_rates.grad != 0).all())
    fixed = _model(inference_rate_schedule=model.log_step_rates.exp().tolist())
    fixed.load_state_dict(model.state_dict(), strict=False)
    assert_exact(fixed(_ids()), model(_ids()))


@pytest.mark.parametrize(
    "schedule", [[1.0, 1.0], [], "learnt", 1.0, [1.0, 0.0, 1.0], [1.0, -1.0, 1.0], [1.0, float("nan"), 1.0]]
)
def test_other_schedules_are_refused(schedule: Any) -> None:
    with pytest.raises(ValueError, match="inference_rate_schedule must be"):
        nrgpt.NRGPT_H_FF1(**SIZES, inference_rate_schedule=schedule)
