from collections.abc import Mapping
from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, summaries, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, judge
from paper_repro.artifacts.judgements import OTHER_SCALE
from paper_repro.artifacts.views import View
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Outcome
from paper_repro.tests.support.synthetic import fill, finished

PRINTED = {
    "transformer": (1.0, 1.0, 1.0),
    "one_step": (3.92, 1.77, 1.77),
    "two_steps": (7.78, 2.85, 3.24),
    "one_step_split": (3.0, 1.4, 1.5),
    "two_steps_split": (5.6, 2.1, 2.4),
    "time_embed_split": (6.4, 2.2, 2.5),
}
"""Ratios of time, memory and first step."""


def view_of(root: Path, ratios: Mapping[str, tuple[float, float, float]], scale: str = "paper") -> View:
    plan = plans.make(catalogue.load("ebt/tableD5"), scale)

    def outcome(cell: PlannedCell) -> Outcome:
        time, memory, first = (ratio * (1 + 0.002 * cell.seed) for ratio in ratios[dict(cell.key)["model"]])
        return finished(throughput_own=17.2 / time, ratio_own=time, memory_ratio_own=memory, first_ratio_own=first)

    fill(root, plan, outcome)
    return views.build(plan, root, None)


def judged(view: View) -> dict[str, Judgement]:
    return {claim.id: judge(claim, view) for claim in view.artifact.claims}


def test_the_paper_s_ratios_bear_out_the_paper_s_words(tmp_path: Path) -> None:
    view = view_of(tmp_path, PRINTED)
    assert {name: judgement.verdict for name, judgement in judged(view).items()} == {
        "step_cost": HOLDS,
        "every_step_costs": HOLDS,
        "second_step_costs_as_the_first": HOLDS,
        "split_streams_are_faster": HOLDS,
    }
    table = view.artifact.companions()[0].TableD5(view)
    summary = table.summary()
    assert summary["time_one_step"] == pytest.approx(3.92, rel=0.003) and len(summary) == 6
    assert {summaries.verdict(table, name, value) for name, value in summary.items()} == {"reproduced"}


def test_printed_ratios_are_those_of_the_printed_trials() -> None:
    artifact = catalogue.load("ebt/tableD5")
    names = {"time": "throughput_own", "memory": "memory_own", "first": "first_own"}
    for kind, metric in names.items():
        for model in ("one_step", "two_steps"):
            own, baseline = (artifact.printed((("model", name),), metric) for name in (model, "transformer"))
            assert own is not None and baseline is not None
            ratio = own.mean / baseline.mean if kind != "time" else baseline.mean / own.mean
            assert artifact.summary[f"{kind}_{model}"].published == pytest.approx(ratio, rel=0.005)


def test_other_ratios_are_seen(tmp_path: Path) -> None:
    other = {**PRINTED, "two_steps": (5.0, 2.85, 3.24), "one_step_split": (4.5, 1.4, 1.5)}
    found = judged(view_of(tmp_path, other))
    assert [label for label, part in found["step_cost"].parts if part.verdict == FAILS] == [
        "Time of a step, with 2 steps"
    ]
    assert found["second_step_costs_as_the_first"].verdict == found["split_streams_are_faster"].verdict == FAILS
    slow = {**PRINTED, "two_steps": PRINTED["transformer"]}
    assert judged(view_of(tmp_path / "slow", slow))["every_step_costs"].verdict == FAILS


def test_on_a_cpu_the_printed_ratios_are_not_judged_and_nothing_is_without_records(tmp_path: Path) -> None:
    found = judged(view_of(tmp_path, PRINTED, "cpu"))
    assert found["step_cost"].verdict == OTHER_SCALE and found["every_step_costs"].verdict == HOLDS
    empty = judged(views.build(plans.make(catalogue.load("ebt/tableD5"), "paper"), tmp_path / "empty", None))
    assert {judgement.verdict for judgement in empty.values()} == {UNDECIDED}


def test_the_baseline_has_the_model_s_sizes_at_every_scale() -> None:
    for scale in ("smoke", "cpu", "paper"):
        for cell in plans.make(catalogue.load("ebt/tableD5"), scale).cells:
            own, baseline = cell.config["models"]["own"], cell.config["models"]["baseline"]
            sizes = ("vocabulary_size", "block_length", "width", "num_heads", "num_layers", "hidden")
            assert {name: own[name] for name in sizes} == {name: baseline[name] for name in sizes}
            assert baseline["block_length"] == cell.config["step"]["window"]
