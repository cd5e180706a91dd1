from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, summaries, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, judge
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.views import View
from paper_repro.base import config as configs
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.probes.model_size import count
from paper_repro.probes.optimisation_settings import OptimisationSettings
from paper_repro.tests.support.synthetic import fill

PLAN = plans.make(catalogue.load("cem/table2"), "exact")


def filled(root: Path, plan: Plan = PLAN) -> View:
    def asked(cell: PlannedCell) -> Outcome:
        (outcome,) = OptimisationSettings().run([Cell(cell.id, cell.config)], Path(), None)  # type: ignore[arg-type]
        return outcome

    fill(root, plan, asked)
    return views.build(plan, root, None)


def verdicts(view: View) -> dict[str, str]:
    return {claim.id: judge(claim, view).verdict for claim in view.artifact.claims}


@pytest.mark.parametrize("parts", [[], ["attention=cem", "feed_forward=cem"]])
def test_the_settings_are_those_of_the_experiment_that_trains(parts: list[str]) -> None:
    trained, own = configs.compose("cem/slimpajama", parts), PLAN.cells[0].config
    assert own["optimizer"] == trained["optimizer"] and own["schedule"] == trained["schedule"]
    assert own["training"] == trained["training"]
    assert own["data"] == {**trained["data"], "files": None}


def test_what_the_paper_prints_is_reproduced(tmp_path: Path) -> None:
    view = filled(tmp_path)
    module = view.artifact.companions()[0]
    assert module is not None
    table = module.Table2(view)
    measured = [name for name, metric in view.artifact.metrics.items() if metric.measured and metric.published]
    words = {table.verdict(name, point).word for point in view.points.values() for name in measured}
    assert words == {"reproduced"} and len(measured) == 7
    assert table.summary() == {"lr": 0.002, "warmup": 0.05}
    assert {summaries.verdict(table, name, value) for name, value in table.summary().items()} == {"reproduced"}
    assert "86M: 1.73 billion tokens; 108M: 2.16 billion tokens; 134M: 2.68 billion" in table.markdown()


def test_the_cosine_is_as_printed_and_the_batch_is_not_of_eight_gpus(tmp_path: Path) -> None:
    view = filled(tmp_path)
    assert verdicts(view) == {"cosine_annealing": HOLDS, "batch_is_of_eight_gpus": FAILS}
    claim = view.artifact.claims[1]
    assert judge(claim, view).because == "8 x 4 x 8 = 256, printed 128"
    empty = views.build(PLAN, tmp_path / "empty", None)
    assert verdicts(empty)["cosine_annealing"] == UNDECIDED
    other = plans.make(PLAN.artifact, "exact", overrides=["schedule.final_factor=0.2"])
    assert verdicts(filled(tmp_path / "other", other))["cosine_annealing"] == FAILS


def test_steps_are_twenty_tokens_for_each_parameter_of_llama() -> None:
    for name, width in (("table2", 0), ("fig2a", 0), ("fig5", 1024)):
        artifact = catalogue.load(f"cem/{name}")
        for cell in plans.make(artifact, "exact" if name == "table2" else "paper", [0]).cells:
            place = dict(cell.key)
            if place.get("model", "llama") != "llama":
                continue
            sizes = catalogue.load("cem/fig5" if width else "cem/fig2a").axes["size"].values[place["size"]].overrides
            parameters = count(configs.compose("cem/slimpajama", sizes.items)["model"])
            assert cell.config["training"]["steps"] == round(20 * parameters / (128 * 2048)), place
