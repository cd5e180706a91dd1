import math
from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, judge
from paper_repro.artifacts.tables import Table
from paper_repro.base import config as configs
from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.probes.optimisation_settings import OptimisationSettings, settings
from paper_repro.tests.support.synthetic import fill

PLAN = plans.make(catalogue.load("ngpt/table3"), "exact")
CELLS = {dict(cell.key)["model"]: cell for cell in PLAN.cells}


def asked(cell: PlannedCell) -> Outcome:
    (outcome,) = OptimisationSettings().run([Cell(cell.id, cell.config)], Path(), None)  # type: ignore[arg-type]
    return outcome


@pytest.mark.parametrize("model", ["gpt", "ngpt"])
def test_the_settings_are_those_of_the_experiment_that_trains(model: str) -> None:
    trained = configs.compose("ngpt/speedup", [f"model=ngpt/{model}"])
    own = CELLS[model].config
    assert own["schedule"] == trained["schedule"] and own["training"] == trained["training"]
    assert own["optimizer"] == {**trained["optimizer"], "lr": 1e-3}
    assert own["data"] == {**trained["data"], "files": None}


def test_what_the_paper_prints_is_reproduced(tmp_path: Path) -> None:
    fill(tmp_path, PLAN, asked)
    view = views.build(PLAN, tmp_path, None)
    table = Table(view)
    words = {
        (point.key[0][1], name): table.verdict(name, point).word
        for point in view.points.values()
        for name in view.artifact.tolerances
    }
    assert len(words) == 8 and set(words.values()) == {"reproduced"}
    (claim,) = view.artifact.claims
    assert judge(claim, view).verdict == HOLDS
    assert judge(claim, views.build(PLAN, tmp_path / "empty", None)).verdict == UNDECIDED


def test_another_schedule_is_no_cosine(tmp_path: Path) -> None:
    plan = plans.make(
        PLAN.artifact,
        "exact",
        overrides=["schedule._target_=paper_repro.training.schedules.Exponential", "schedule.final_factor=0.1"],
    )
    fill(tmp_path, plan, asked)
    assert judge(PLAN.artifact.claims[0], views.build(plan, tmp_path, None)).verdict == FAILS


def test_the_numbers_are_the_objects_own() -> None:
    found = settings(CELLS["gpt"].config)
    assert (found["warmup_steps"], found["windows"], found["tokens"]) == (2000, 8 * 64, 8 * 64 * 1024)
    assert found["factor_first"] == 1 / 2001
    assert found["factor_quarter"] == pytest.approx(0.5 + math.sqrt(0.5) / 2, abs=1e-12)
    assert 0 < found["factor_last"] < 1e-9 and found["factor_end"] == 0.0
    plain = settings(CELLS["ngpt"].config)
    assert (plain["weight_decay"], plain["warmup_steps"], plain["factor_first"]) == (0.0, 0, 1.0)


def test_a_schedule_that_never_reaches_the_rate_is_refused() -> None:
    config = {**CELLS["gpt"].config, "training": {"steps": 1, "clip_norm": 1.0, "accumulate": 1}}
    config["schedule"] = {**config["schedule"], "warmup_fraction": 0.9}
    with pytest.raises(UsageError, match=r"none of the 1 steps has the full rate; lower schedule\.warmup_fraction"):
        settings(config)
