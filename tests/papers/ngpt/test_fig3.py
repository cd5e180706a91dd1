import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, SMALL, UNDECIDED, Judgement, judge
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.judgements import OTHER_SCALE
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.views import View
from paper_repro.base import config as configs
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Outcome
from paper_repro.tests.support.synthetic import fill, finished

ARTIFACT = catalogue.load("ngpt/fig3")
TASKS = ("arc_easy", "hellaswag", "winogrande", "wsc273", "lambada_openai", "downstream_mean")
OURS = (*(f"continuations_{letters}" for letters in range(1, 6)), "continuations_mean")
FLOORS = {"val_loss": 9.0, **dict.fromkeys(OURS, 25.0)}


def planned(scale: str) -> Plan:
    return plans.make(ARTIFACT, scale, overrides=["data.files={}"])


CPU = planned("cpu")


def built(plan: Plan, root: Path, outcome: Callable[[PlannedCell], Outcome | None]) -> View:
    fill(root, plan, outcome, FLOORS)
    return views.build(plan, root, None)


def scored(advantage: float) -> Callable[[PlannedCell], Outcome]:
    """All tasks at 60 %, nGPT above by ``advantage``, each seed a little apart from the others."""

    def outcome(cell: PlannedCell) -> Outcome:
        ours = dict(cell.key)["model"] == "ngpt"
        accuracy = 60 + cell.seed + (advantage + 0.01 * cell.seed if ours else 0.0)
        return finished(val_loss=3.0, **dict.fromkeys((*TASKS, *OURS), accuracy))

    return outcome


def lacking(cell: PlannedCell) -> Outcome:
    outcome = finished(val_loss=3.0)
    outcome.unavailable = dict.fromkeys(OURS, "needs lm-eval: pip install it")
    return outcome


def judged(view: View) -> Judgement:
    papers, ours = (judge(claim, view) for claim in view.artifact.claims)
    assert papers == Judgement(OTHER_SCALE, "to be judged at scale gpu or paper")
    return ours


def figure(view: View) -> Any:
    companion: Any = view.artifact.companions()[0]
    return companion.Figure3(view)


def test_every_run_gives_five_tasks_and_their_mean(tmp_path: Path) -> None:
    view = built(CPU, tmp_path / "runs", scored(1.0))
    written = figure(view).write(tmp_path)
    assert [path.name for path in written] == ["figure.csv", "figure.png", "figure.svg"]
    with (tmp_path / "figure.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    rows = [row for row in lines if not row["floor"]]
    named = [row["floor"] for row in lines]
    assert named.count("Chance") == named.count("Choice of the bigram count") == len(OURS)  # one in each panel
    assert len(rows) == len(CPU.cells) // 2 * len(TASKS)  # of two rates the better one
    tokens = {(row["budget"], int(row["tokens"])) for row in rows}
    assert tokens == {("f8", 512 * 1024), ("f4", 1024 * 1024), ("f2", 2048 * 1024)}
    assert {row["task"] for row in rows} == set(OURS)  # never the names of the paper's tasks
    drawn = (tmp_path / "figure.svg").read_text()
    assert "our docstring continuations" in drawn
    assert "nGPT" in drawn and "0.5B" not in drawn  # one reduced size, which is not the paper's


def test_without_data_the_figure_is_drawn_empty_and_the_claim_says_what_is_lacking(tmp_path: Path) -> None:
    view = built(CPU, tmp_path / "runs", lacking)
    assert figure(view).rows() == []
    figure(view).write(tmp_path)
    assert (tmp_path / "figure.svg").read_text().count("n/a") == len(TASKS)
    assert judged(view) == Judgement(UNDECIDED, "n/a: needs lm-eval")
    assert judged(views.build(CPU, tmp_path / "empty", None)) == Judgement(UNDECIDED, "not run")


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, HOLDS), (-1.0, FAILS), (-0.01, SMALL)])
def test_the_difference_is_judged_at_every_budget(tmp_path: Path, advantage: float, expected: str) -> None:
    found = judged(built(CPU, tmp_path, scored(advantage)))
    assert found.verdict == expected
    assert [label for label, _ in found.parts] == ["0.5B, 1k, 1/8", "0.5B, 1k, 1/4", "0.5B, 1k, 1/2"]


def test_of_several_rates_the_one_with_the_lowest_loss_counts(tmp_path: Path) -> None:
    losses = {"5e-4": 2.4, "1e-3": 2.2, "1.5e-3": 2.1, "2e-3": 2.3, "3e-3": 2.5}
    only = {"size": ["large"], "context": ["c1k"], "model": ["gpt", "ngpt"], "budget": ["f1"], "lr": list(losses)}
    scale = replace(ARTIFACT.scales["paper"], only=only)
    plan = plans.make(replace(ARTIFACT, scales={"paper": scale}), "paper", overrides=["data.files={}"])

    def outcome(cell: PlannedCell) -> Outcome:
        loss = losses[dict(cell.key)["lr"]]
        return finished(val_loss=loss, **dict.fromkeys(TASKS, 100 * loss))  # the best rate has the lowest accuracy

    rows = figure(built(plan, tmp_path, outcome)).rows()
    found = {(row["model"], row["rate"], row["accuracy"]) for row in rows}
    assert {(model, rate, round(value, 3)) for model, rate, value in found} == {
        ("gpt", 1.5e-3, 210.0),
        ("ngpt", 1.5e-3, 210.0),
    }
    assert {row["tokens"] for row in rows} == {200_000 * 512 * 1024}
    assert {row["task"] for row in rows} == set(TASKS)


@pytest.mark.parametrize("word", ["smoke", "cpu", "gpu", "paper"])
def test_every_run_is_configured_as_in_figure_2(word: str) -> None:
    other = catalogue.load("ngpt/fig2")
    points = ARTIFACT.points(ARTIFACT.scales[word])
    assert points
    for key in points:
        own = [item for item in ARTIFACT.overrides(key, ARTIFACT.scales[word]) if item.key.split(".")[0] != "probes"]
        assert own == other.overrides(key, other.scales[word])


def test_the_experiment_is_figure_2s_and_only_the_probe_is_added() -> None:
    own, other = (configs.compose(name) for name in (ARTIFACT.experiment, "ngpt/speedup"))
    assert list(own["probes"]) == ["downstream"]
    assert {**own, "probes": {}} == other


@pytest.mark.parametrize(("word", "tasks"), [("smoke", OURS), ("cpu", OURS), ("gpu", TASKS), ("paper", TASKS)])
def test_a_scale_shows_the_tasks_that_it_runs_and_no_others(word: str, tasks: tuple[str, ...]) -> None:
    plan = planned(word)
    shown = [name for name in plan.artifact.metrics if name.endswith("_mean") or name in (*TASKS, *OURS)]
    assert shown == list(tasks)
    probes = [cell.config["probes"] for cell in plan.cells]
    assert {name for own in probes for probe in own.values() for name in probe["tasks"]} == set(tasks[:-1])
    assert ("bigram_choice" in {floor.name for floor in plan.floors}) == (tasks is OURS)
    for floor in plan.floors:
        assert floor.spec.metrics.keys() & plan.artifact.metrics.keys()


def test_a_budget_at_which_a_model_guesses_is_not_judged(tmp_path: Path) -> None:
    def outcome(cell: PlannedCell) -> Outcome:
        place = dict(cell.key)
        accuracy = 25.0 + 0.01 * (cell.seed - 1) if place["budget"] == "f8" else 60.0 + cell.seed
        ours = 2.0 + 0.01 * cell.seed if place["model"] == "ngpt" and place["budget"] != "f8" else 0.0
        return finished(val_loss=3.0, **dict.fromkeys(OURS, accuracy + ours))

    found = judged(built(CPU, tmp_path, outcome))
    assert [part.verdict for _, part in found.parts] == [NOT_JUDGED, HOLDS, HOLDS]
    assert found.verdict == NOT_JUDGED
    assert "Chance 25.0" in found.parts[0][1].because
