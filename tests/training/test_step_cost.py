from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.configs import compose
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import FINISHED, Cell
from paper_repro.training.step_time import StepCost, StepSettings, build_stepper, each_model

TINY = (
    "model.vocabulary_size=17",
    "model.width=8",
    "model.num_heads=2",
    "model.num_layers=2",
    "data.window=6",
    "step.batch_size=2",
    "step.rounds=2",
    "step.unmeasured_rounds=1",
)


class Silent:
    stop_requested = False

    saves = False

    def check_lease(self) -> None:
        """There is none."""

    def progress(self, step: int, steps: int, loss: float) -> None:
        assert loss > 0


def config(*overrides: str) -> dict[str, Any]:
    return compose("ebt/stepcost", [*overrides, *TINY], seed=0)


def run(*overrides: str) -> dict[str, float]:
    (outcome,) = StepCost().run([Cell("cell", config(*overrides))], Path(), Silent())
    assert outcome.status == FINISHED
    return outcome.metrics


def test_memory_first_step_and_throughput_stand_beside_the_times() -> None:
    found = run("model=ebt/transformer")
    for kind in ("seconds", "throughput", "first", "memory"):
        assert found[f"{kind}_baseline"] > 0 and found[f"{kind}_own"] > 0
    assert found["throughput_own"] * found["seconds_own"] == pytest.approx(1)
    # The same model as the baseline keeps as much as it.
    assert found["memory_ratio_own"] == 1
    assert found["first_ratio_own"] == pytest.approx(found["first_own"] / found["first_baseline"])


@pytest.mark.slow
def test_split_streams_keep_less_than_concatenated_ones_and_both_more_than_the_baseline() -> None:
    default = ("model.variant=default", "model.num_landscapes=1")
    split, both = run(*default)["memory_ratio_own"], run(*default, "+model.streams=concatenated")["memory_ratio_own"]
    assert 1 < split < 0.8 * both


def test_each_model_is_trained_by_its_own_module() -> None:
    models = each_model(config())
    assert [own["module"]["_target_"].rpartition(".")[2] for _, own in models.values()] == [
        "TransformerLanguage",
        "EBTLanguage",
    ]


def test_a_step_of_ebt_is_that_of_its_module_with_fresh_draws() -> None:
    section = config("model.step_size=5")
    step = StepSettings(**section["step"])
    node, own = each_model(section)["own"]
    found = build_stepper(node, own, step, torch.device("cpu"))
    module = found.module
    generator = torch.Generator().manual_seed(mix(0, "step time"))
    rows = torch.randint(17, (8, 2, 7), generator=generator)
    batch = (rows[0, :, :-1], rows[0, :, 1:])
    expected = module.loss_and_carry(batch, module.draws_of(batch, 0, 0, torch.device("cpu")), {})[0]
    assert found.loss().item() == expected.item()
    other = build_stepper(node, own, step, torch.device("cpu"))
    other.batches = iter([batch, batch])
    assert other.loss().item() != other.loss().item()
    # Alpha has a group of its own, which does not decay.
    assert [group["weight_decay"] for group in found.optimizer.param_groups] == [0.01, 0.0]
