"""Hyperparameters of Tables D.3 and D.4, read from what training builds."""

from pathlib import Path

import pytest

from paper_repro.base import configs
from paper_repro.cells.tasks import Cell
from paper_repro.probes.settings import PredictionSettings
from paper_repro.probes.settings import prediction_settings as settings
from paper_repro.tables import plan as plans
from paper_repro.tables import spec

PLAN = plans.make(spec.load("ebt/tableD3"), "exact")


@pytest.mark.parametrize(("model", "group"), [("transformer", "ebt/transformer"), ("ebt", "ebt/s1")])
def test_the_settings_are_those_of_the_experiment_that_trains(model: str, group: str) -> None:
    trained = configs.compose("ebt/language", [f"model={group}"])
    for cell in PLAN.cells:
        if dict(cell.key)["model"] == model:
            for section in ("model", "module", "optimizer", "schedule", "training"):
                assert cell.config[section] == trained[section]
            assert cell.config["data"] == {**trained["data"], "files": None}


def test_every_printed_hyperparameter_is_reproduced_and_the_others_are_the_published_codes() -> None:
    found = {}
    for cell in PLAN.cells:
        (outcome,) = PredictionSettings().run([Cell(cell.id, cell.config)], Path(), None)  # type: ignore[arg-type]
        found[cell.key] = outcome.metrics["value"]
    printed = {key: number.mean for key in found if (number := PLAN.artifact.printed(key, "value")) is not None}
    assert len(printed) == 10 + 14 and {key: found[key] for key in printed} == pytest.approx(printed)
    ours = {dict(key)["item"]: value for key, value in found.items() if dict(key)["model"] == "ebt"}
    assert {name: ours[name] for name in ("eps", "step_size_decay", "lr")} == {
        "eps": 1e-8,
        "step_size_decay": 0,
        "lr": 1.2e-3,
    }
    # The step size's rate starts 1,500 times higher and ends where the others do, at a tenth of their peak.
    assert ours["step_size_minimum"] == pytest.approx(1500 * 10)
    # Linear warm-up, then half a cosine to a tenth.
    assert ours["factor_first"] == pytest.approx(1 / (ours["warmup_steps"] + 1))
    assert ours["factor_half"] == pytest.approx(0.1 + 0.9 / 2)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.step_size=3"], {"step_size": 3, "learn_step_size": 1}),
        (["model.learn_step_size=false"], {"learn_step_size": 0}),
        (["module.thinking.num_steps=3"], {"num_steps": 3}),
        (["optimizer._target_=torch.optim.Adam"], {"adamw": 0}),
        (["module.step_size_multiplier=9"], {"step_size_multiplier": 9}),
        (["optimizer.weight_decay=0.2"], {"weight_decay": 0.2, "step_size_decay": 0}),
    ],
)
def test_the_numbers_follow_the_experiment(overrides: list[str], expected: dict[str, float]) -> None:
    found = settings(configs.compose("ebt/settings", overrides, seed=0))
    assert {name: found[name] for name in expected} == expected
    assert ("step_size_multiplier" in found) == ("model.learn_step_size=false" not in overrides)
