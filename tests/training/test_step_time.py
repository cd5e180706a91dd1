"""Tasks that time and count a training step of models beside that of a baseline."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.configs import compose
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import FINISHED, Cell, StopRequestedError
from paper_repro.kernels.preferences import prefer
from paper_repro.tests.support.reports import Recorder
from paper_repro.training import step_time
from paper_repro.training.build import build_module
from paper_repro.training.counting import count_flops
from paper_repro.training.step_time import (
    StepCost,
    StepFlops,
    StepSettings,
    StepTime,
    build_stepper,
    count,
    each_model,
)

TINY_TIME = (
    *("size.vocabulary_size=17", "size.width=8", "size.num_heads=2", "size.num_layers=1", "step.window=6"),
    *("step.batch_size=2", "step.accumulate=2", "step.rounds=3", "step.unmeasured_rounds=1"),
)
STOCK = ("optimizer._target_=torch.optim.AdamW", "machine.implementation=reference")
TINY_COST = (
    *("model.vocabulary_size=17", "model.width=8", "model.num_heads=2", "model.num_layers=2", "data.window=6"),
    *("step.batch_size=2", "step.rounds=2", "step.unmeasured_rounds=1"),
)
WIDTH, HEADS, LAYERS, WINDOW, VOCABULARY = 8, 2, 4, 5, 11
TINY_FLOPS = (
    *(f"model.width={WIDTH}", f"model.num_heads={HEADS}", f"model.num_layers={LAYERS}"),
    *(f"data.window={WINDOW}", f"model.vocabulary_size={VOCABULARY}"),
)
DEFAULT = ("model.variant=default", "model.num_landscapes=1", "module.thinking.num_steps=1")
TRANSFORMER = ("model=ebt/transformer", "ways={plain: {}}")


def timed(*overrides: str) -> dict[str, Any]:
    return compose("ngpt/steptime", [*TINY_TIME, *overrides], seed=0)


def costing(*overrides: str) -> dict[str, Any]:
    return compose("ebt/stepcost", [*overrides, *TINY_COST], seed=0)


def sized(*overrides: str) -> dict[str, Any]:
    return compose("ebt/sizes", [*overrides, *TINY_FLOPS], seed=0)


def run(task: Any, config: dict[str, Any], stop_at: int | None = None) -> tuple[Any, Recorder]:
    report = Recorder(stop_at)
    (outcome,) = task().run([Cell("cell", config)], Path(), report)
    assert outcome.status == FINISHED and all(loss > 0 for _, _, loss in report.seen)
    return outcome, report


@pytest.mark.parametrize("overrides", [(), STOCK, ("step.precision=bf16-mixed",)])
def test_every_model_is_timed_against_the_first(overrides: tuple[str, ...]) -> None:
    outcome, report = run(StepTime, timed(*overrides))
    assert [(step, steps) for step, steps, _ in report.seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
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
    found = run(StepTime, timed())[0].metrics
    assert (found["seconds_gpt"], found["seconds_gpt_qk"], found["seconds_ngpt"]) == (7, 8, 9)
    assert found["ratio_ngpt"] == 9 / 7 and found["ratio_gpt_qk"] == 8 / 7
    assert found["spread_ngpt"] == pytest.approx((6 / 4 - 12 / 10) / (9 / 7), rel=1e-12)


def test_memory_first_step_and_throughput_stand_beside_the_times() -> None:
    found = run(StepCost, costing("model=ebt/transformer"))[0].metrics
    for kind in ("seconds", "throughput", "first", "memory"):
        assert found[f"{kind}_baseline"] > 0 and found[f"{kind}_own"] > 0
    assert found["throughput_own"] * found["seconds_own"] == pytest.approx(1)
    # The same model as the baseline keeps as much as it.
    assert found["memory_ratio_own"] == 1
    assert found["first_ratio_own"] == pytest.approx(found["first_own"] / found["first_baseline"])


def test_a_step_of_ebt_is_that_of_its_module_with_fresh_draws() -> None:
    section = costing("model.step_size=5")
    step = StepSettings(**section["step"])
    own = each_model(section)["own"]
    found = build_stepper(own, step, torch.device("cpu"))
    module = found.module
    generator = torch.Generator().manual_seed(mix(0, "step time"))
    rows = torch.randint(17, (8, 2, 7), generator=generator)
    batch = (rows[0, :, :-1], rows[0, :, 1:])
    expected = module.loss_and_carry(batch, module.draws_of(batch, 0, 0, torch.device("cpu")), {})[0]
    assert found.loss().item() == expected.item()
    other = build_stepper(own, step, torch.device("cpu"))
    other.batches = iter([batch, batch])
    assert other.loss().item() != other.loss().item()
    # Alpha has a group of its own, which does not decay.
    assert [group["weight_decay"] for group in found.optimizer.param_groups] == [0.01, 0.0]


@pytest.mark.slow
def test_a_transformer_s_step_is_the_formula() -> None:
    """6 for each weight and token; attention 4 T^2 D forward and twice that backward; the vocabulary 6 V D a token."""
    found = run(StepFlops, sized(*TRANSFORMER))[0].metrics
    trunk, attention = 6 * 7 * LAYERS * WIDTH**2 * WINDOW, 3 * 4 * LAYERS * WINDOW**2 * WIDTH
    assert found["flops_plain"] == trunk + attention + 6 * VOCABULARY * WIDTH * WINDOW
    assert found["ratio_plain"] == found["weights_plain"] == 1
    assert count(sized(*TRANSFORMER)).weights == trunk + 6 * WIDTH * WINDOW


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [DEFAULT, ()], ids=["default", "time_embed"])
@pytest.mark.parametrize("streams", ["split", "concatenated"])
def test_further_layers_cost_what_the_second_does_at_any_vocabulary(overrides: tuple[str, ...], streams: str) -> None:
    config = sized(*overrides)
    config = {**config, "model": {**config["model"], "streams": streams}}
    with torch.device("meta"):
        module = build_module(config)
    ids = torch.zeros(1, WINDOW, dtype=torch.long, device="meta")
    with prefer(implementation="reference"):
        assert count(config).whole == count_flops(lambda: module.counted_step((ids, ids)))


@pytest.mark.slow
def test_a_step_of_both_streams_takes_twelve_for_each_weight_on_both_halves() -> None:
    """12 N a row on T observed and T predicted rows is 4 times 6 N on T rows; the head of D numbers comes on top."""
    found = run(StepFlops, sized(*DEFAULT))[0].metrics
    assert found["weights_concatenated"] == pytest.approx(4, rel=0.02)
    twice = run(StepFlops, sized("model.variant=default", "model.num_landscapes=1"))[0].metrics
    assert twice["weights_concatenated"] == pytest.approx(8, rel=0.02)
    # Split: 12 on the predicted rows for each step, 6 on the observed ones but for the last layer, once.
    last = 5 / 7 / LAYERS
    assert found["weights_split"] == pytest.approx(3 - last, rel=0.02)
    assert twice["weights_split"] == pytest.approx(5 - last, rel=0.02)
    assert twice["flops_split"] < twice["flops_concatenated"]


def test_a_request_to_stop_is_heard_between_rounds() -> None:
    report = Recorder(2)
    with pytest.raises(StopRequestedError):
        StepTime().run([Cell("cell", timed())], Path(), report)
    assert len(report.seen) == 2
