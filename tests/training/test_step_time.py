import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.configs import compose
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import FINISHED, Cell, StopRequestedError
from paper_repro.training import step_time
from paper_repro.training.step_time import StepTime, metrics

TINY = (
    "size.vocabulary_size=17",
    "size.width=8",
    "size.num_heads=2",
    "size.num_layers=1",
    "step.window=6",
    "step.batch_size=2",
    "step.accumulate=2",
    "step.rounds=3",
    "step.unmeasured_rounds=1",
)
STOCK = ("optimizer._target_=torch.optim.AdamW", "machine.implementation=reference")


class Silent:
    saves = False

    def __init__(self, stop_after: int | None = None) -> None:
        self.rounds, self.stop_after = 0, stop_after

    def progress(self, step: int, steps: int, loss: float) -> None:
        assert (step, steps) == (self.rounds + 1, 4) and loss > 0
        self.rounds = step

    def check_lease(self) -> None:
        """There is none."""

    @property
    def stop_requested(self) -> bool:
        return self.rounds == self.stop_after


@pytest.mark.slow
def test_fused_optimisers_cost_what_others_cost() -> None:
    """A cost is counted without numbers, on a device on which torch's fused optimisers refuse to step."""
    fused = StepTime().cost(config("optimizer._target_=torch.optim.AdamW", "machine.fused_optimizer=true"))
    assert fused == StepTime().cost(config(*STOCK, "machine.fused_optimizer=false")) and fused.step_flops > 0


def config(*overrides: str) -> dict[str, Any]:
    return compose("ngpt/steptime", [*TINY, *overrides], seed=0)


def run(report: Silent, *overrides: str) -> Any:
    (outcome,) = StepTime().run([Cell("cell", config(*overrides))], Path(), report)
    return outcome


@pytest.mark.parametrize("overrides", [(), STOCK, ("step.precision=bf16-mixed",)])
def test_every_model_is_timed_against_the_first(overrides: tuple[str, ...]) -> None:
    report = Silent()
    outcome = run(report, *overrides)
    assert outcome.status == FINISHED and report.rounds == 4
    assert outcome.metrics.keys() == {
        *(f"seconds_{name}" for name in ("gpt", "gpt_qk", "ngpt")),
        *(f"{kind}_{name}" for kind in ("ratio", "spread") for name in ("gpt_qk", "ngpt")),
    }
    assert 0 < sum(value for name, value in outcome.metrics.items() if "seconds" in name) < outcome.seconds


def test_the_models_take_turns_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up clock: step n takes n seconds, so the three models' steps 4, 7, 10 and 5, 8, 11 and 6, 9, 12 count."""
    steps, now = itertools.count(1), [0.0]

    class Stepping:
        def step(self) -> torch.Tensor:
            now[0] += next(steps)
            return torch.tensor(1.0)

    monkeypatch.setattr(step_time, "build_stepper", lambda *_: Stepping())
    monkeypatch.setattr(step_time.time, "perf_counter", lambda: now[0])
    found = run(Silent()).metrics
    assert (found["seconds_gpt"], found["seconds_gpt_qk"], found["seconds_ngpt"]) == (7, 8, 9)
    assert found["ratio_ngpt"] == 9 / 7 and found["ratio_gpt_qk"] == 8 / 7
    assert found["spread_ngpt"] == pytest.approx((6 / 4 - 12 / 10) / (9 / 7), rel=1e-12)


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that slows down for all alike moves seconds, not ratios."""
    found = metrics({"a": [1.0, 2.0, 8.0], "b": [1.5, 3.0, 12.0]})
    assert found == {"seconds_a": 2.0, "seconds_b": 3.0, "ratio_b": 1.5, "spread_b": 0.0}


def test_a_request_to_stop_is_heard_between_rounds() -> None:
    report = Silent(stop_after=2)
    with pytest.raises(StopRequestedError):
        run(report)
    assert report.rounds == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("step.rounds=0", "step: rounds must be a whole number of at least 1"),
        ("step.precision=16-mixed", "step: precision must be one of 32-true, bf16-mixed"),
        ("step.clip_norm=0", "step: clip_norm must be a positive"),
        ("+step.tokens=1", "step: .*unexpected keyword argument 'tokens'"),
    ],
)
def test_settings_that_cannot_be_are_refused(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(Silent(), override)
