from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, judge
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.tables import Table
from paper_repro.artifacts.views import View
from paper_repro.base import config as configs
from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.probes.prediction_settings import PredictionSettings, settings
from paper_repro.tests.support.synthetic import fill

PLAN = plans.make(catalogue.load("ebt/tableD3"), "exact")


def filled(root: Path, plan: Plan = PLAN) -> View:
    def asked(cell: PlannedCell) -> Outcome:
        (outcome,) = PredictionSettings().run([Cell(cell.id, cell.config)], Path(), None)  # type: ignore[arg-type]
        return outcome

    fill(root, plan, asked)
    return views.build(plan, root, None)


def verdicts(view: View) -> dict[str, str]:
    return {claim.id: judge(claim, view).verdict for claim in view.artifact.claims}


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    return filled(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(("model", "group"), [("transformer", "ebt/transformer"), ("ebt", "ebt/s1")])
def test_the_settings_are_those_of_the_experiment_that_trains(model: str, group: str) -> None:
    trained = configs.compose("ebt/language", [f"model={group}"])
    for cell in PLAN.cells:
        if dict(cell.key)["model"] == model:
            for section in ("model", "module", "optimizer", "schedule", "training"):
                assert cell.config[section] == trained[section]
            assert cell.config["data"] == {**trained["data"], "files": None}


def test_every_printed_hyperparameter_is_reproduced(view: View) -> None:
    table = Table(view)
    words = [table.verdict("value", point).word for key, point in view.points.items() if view.printed(key, "value")]
    assert words == ["reproduced"] * (10 + 14)
    assert len(view.points) == 15 + 21
    cv = {dict(key)["item"]: view.printed(key, "cv") for key in view.points}
    assert {name: cv[name].mean for name in ("context", "step_size", "step_size_multiplier")} == {  # type: ignore[union-attr]
        "context": 16,
        "step_size": 30000,
        "step_size_multiplier": 90000,
    }


def test_what_is_not_printed_is_the_published_code_s(view: View) -> None:
    found = {item: view.samples("value", {"model": "ebt", "item": item}) for item in view.artifact.axes["item"].values}
    assert {name: found[name][0] for name in ("eps", "step_size_decay", "lr")} == {
        "eps": 1e-8,
        "step_size_decay": 0,
        "lr": 1.2e-3,
    }
    # The step size's rate starts 1,500 times higher and ends where the others do, at a tenth of their peak.
    assert found["step_size_minimum"][0] == pytest.approx(1500 * 10)


def test_the_schedule_is_the_printed_one_and_does_not_fit_the_shortest_run(view: View, tmp_path: Path) -> None:
    assert verdicts(view) == {"linear_warmup_and_cosine": HOLDS, "warmup_fits_the_scaling_runs": FAILS}
    parts = judge(view.artifact.claims[1], view).parts
    assert [label for label, part in parts if part.verdict == FAILS] == ["XXS"]
    empty = views.build(PLAN, tmp_path / "empty", None)
    assert verdicts(empty)["linear_warmup_and_cosine"] == UNDECIDED
    other = plans.make(PLAN.artifact, "exact", overrides=["schedule.final_factor=0.2"])
    assert verdicts(filled(tmp_path / "other", other))["linear_warmup_and_cosine"] == FAILS


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


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["item=step"], "item=step is no setting of this model.*step"),
        (["model=ebt/transformer", "item=step_size"], "item=step_size is no setting"),
        (["model=ebt/transformer", "+module.decay_matrices_only=true"], "module"),
    ],
)
def test_what_is_no_setting_is_refused(overrides: list[str], message: str) -> None:
    config = configs.compose("ebt/settings", overrides, seed=0)
    with pytest.raises(UsageError, match=message):
        PredictionSettings().run([Cell("cell", config)], Path(), None)  # type: ignore[arg-type]
