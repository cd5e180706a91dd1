from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, summaries, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, SMALL
from paper_repro.artifacts.claims import judge as judge_claim
from paper_repro.artifacts.judgements import OTHER_SCALE
from paper_repro.artifacts.views import View
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Outcome
from paper_repro.tests.support.synthetic import fill, finished

Overhead = Callable[[Mapping[str, str]], float]
WINDOWS = {"t256": 256, "t1024": 1024, "t4096": 4096, "t8192": 8192}


def view_of(root: Path, overhead: Overhead, scale: str) -> View:
    """Steps of GPT that take a second, give or take some thousandths; nGPT's take ``overhead`` longer."""
    plan = plans.make(catalogue.load("ngpt/steptime"), scale)

    def outcome(cell: PlannedCell) -> Outcome:
        ratio = 1 + overhead(dict(cell.key)) + 0.001 * cell.seed
        return finished(seconds_gpt=1 + 0.002 * cell.seed, seconds_ngpt=ratio, ratio_ngpt=ratio)

    fill(root, plan, outcome)
    return views.build(plan, root, None)


def verdicts(view: View) -> dict[str, str]:
    return {claim.id: judge_claim(claim, view).verdict for claim in view.artifact.claims}


def as_in_the_paper(place: Mapping[str, str]) -> float:
    falls = 3.0 if place["size"] == "small" else 2.8
    unfused = {"t1024": falls, "t4096": 0.26 * falls, "t8192": 0.2 * falls}[place["context"]]
    return unfused if place["implementation"] == "reference" else 0.03


def test_the_paper_s_numbers_bear_out_the_paper_s_words(tmp_path: Path) -> None:
    view = view_of(tmp_path, as_in_the_paper, "paper")
    assert set(verdicts(view).values()) == {HOLDS}
    companion = view.artifact.companions()[0]
    table = companion.StepTimes(view)
    assert table.summary() == pytest.approx({"ratio_4k": 1.781, "ratio_8k": 1.601})
    assert [summaries.verdict(table, name, value) for name, value in table.summary().items()] == ["reproduced"] * 2


def test_an_overhead_that_does_not_fall_is_seen(tmp_path: Path) -> None:
    found = verdicts(view_of(tmp_path, lambda place: WINDOWS[place["context"]] / 8192, "paper"))
    assert found["overhead_falls_with_context"] == FAILS
    assert found["overhead_falls_with_size"] == SMALL  # equal at both sizes
    assert found["step_overhead"] == found["step_overhead_fused"] == FAILS
    assert found["step_takes_longer"] == HOLDS


def test_on_a_cpu_the_numbers_are_not_held_against_the_paper_s(tmp_path: Path) -> None:
    view = view_of(tmp_path, lambda place: 64 / WINDOWS[place["context"]], "cpu")
    assert verdicts(view) == {
        "step_overhead": OTHER_SCALE,
        "step_takes_longer": HOLDS,
        "step_overhead_fused": FAILS,
        "overhead_falls_with_context": HOLDS,
        "overhead_falls_with_size": SMALL,
    }
    companion = view.artifact.companions()[0]
    table = companion.StepTimes(view)
    assert table.summary().keys() == {"ratio_4k"} and summaries.verdict(table, "ratio_4k", 1.8) == "reduced scale"


def test_tokens_of_a_step_do_not_depend_on_the_context() -> None:
    steps = [cell.config["step"] for cell in plans.make(catalogue.load("ngpt/steptime"), "cpu").cells]
    assert {step["window"] * step["batch_size"] * step["accumulate"] for step in steps} == {4096}
    steps = [cell.config["step"] for cell in plans.make(catalogue.load("ngpt/steptime"), "paper").cells]
    assert {step["batch_size"] * step["accumulate"] for step in steps} == {8}
