from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, summaries, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, judge
from paper_repro.artifacts.views import View
from paper_repro.base import config as configs
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Outcome
from paper_repro.tests.support.synthetic import fill, finished
from paper_repro.training.step_flops import parameters

PLAN = plans.make(catalogue.load("ebt/tableD2"), "exact")
TRANSFORMER = {
    "xxs": 6_198_144,
    "xs": 12_395_904,
    "small": 49_564_416,
    "medium": 176_210_944,
    "large": 396_436_992,
    "xl": 704_743_424,
}
TIME_EMBED = {"xxs": 6_199_296, "xs": 12_397_056, "small": 49_566_720, "xl": 704_749_568}
ADALN = {"xxs": 11.8, "xs": 23.3, "small": 93.3, "medium": 329.5, "large": 741.1, "xl": 1317.4}
COUNTED = {"transformer": 1.0, "one_step": 4.0, "two_steps": 8.0, "time_embed": 8.02, "adaln": 8.01}
"""Ratios of products with weights, both streams through every step."""
Ratio = Callable[[Mapping[str, str]], float]


def view_of(root: Path, concatenated: Ratio, split: Ratio) -> View:
    def counted(cell: PlannedCell) -> Outcome:
        place = dict(cell.key)
        return finished(**parameters(cell.config), weights_concatenated=concatenated(place), weights_split=split(place))

    fill(root, PLAN, counted)
    return views.build(PLAN, root, None)


def judged(view: View) -> dict[str, Judgement]:
    return {claim.id: judge(claim, view) for claim in view.artifact.claims}


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    root = tmp_path_factory.mktemp("runs")
    return view_of(root, lambda place: COUNTED[place["model"]], lambda place: 0.6 * COUNTED[place["model"]])


def test_the_counts_are_those_of_the_published_code(view: View) -> None:
    def count(size: str, model: str) -> float:
        return view.samples("parameters", {"size": size, "model": model})[0]

    for size, number in TRANSFORMER.items():
        width = view.counted("width", {"size": size, "model": "transformer"})
        assert width is not None
        assert count(size, "transformer") == number
        assert count(size, "one_step") == count(size, "two_steps") == number + width
        assert round(count(size, "adaln") / 1e6, 1) == ADALN[size]
    assert {size: count(size, "time_embed") for size in TIME_EMBED} == TIME_EMBED
    totals = [view.samples("parameters_total", {"size": size, "model": "transformer"})[0] for size in TRANSFORMER]
    assert [round(total / 1e6, 2) for total in totals] == [44.81, 51.01, 126.79, 279.18, 550.89, 910.68]


def test_the_models_that_are_counted_are_those_that_train() -> None:
    at = {"xxs": "transformer", "small": "time_embed"}
    for cell in PLAN.cells:
        place = dict(cell.key)
        if at.get(place["size"]) == place["model"]:
            group = "ebt/transformer" if place["model"] == "transformer" else "ebt/s1"
            width = [] if place["size"] == "xxs" else ["model.num_layers=12", "model.width=768", "model.num_heads=12"]
            trained = configs.compose("ebt/language", [f"model={group}", *width])
            assert cell.config["model"] == trained["model"] and cell.config["module"] == trained["module"]


def test_two_sizes_are_off_and_cut_totals_explain_one_of_them(view: View) -> None:
    companion = view.artifact.companions()[0]
    table = companion.TableD2(view)

    def off(name: str) -> list[str]:
        keys = [(dict(key), point) for key, point in view.points.items()]
        return [
            place["size"]
            for place, point in keys
            if place["model"] == "transformer" and table.verdict(name, point).word != "reproduced"
        ]

    assert off("parameters") == ["small", "xl"] and off("parameters_rebuilt") == ["xl"]
    found = judged(view)["printed_counts_are_of_cut_totals"]
    assert found.verdict == FAILS and [label for label, part in found.parts if part.verdict == FAILS] == ["XL"]
    assert table.summary() == pytest.approx({"rule_one_step": 10 / 3, "rule_two_steps": 20 / 3})
    assert {summaries.verdict(table, name, value) for name, value in table.summary().items()} == {"reproduced"}


def test_the_claims_turn_with_the_counts(view: View, tmp_path: Path) -> None:
    names = ("ebt_adds_one_row", "step_costs_as_the_rule_says", "split_costs_less_than_the_rule")
    assert [judged(view)[name].verdict for name in names] == [HOLDS, FAILS, HOLDS]
    rule = {"transformer": 1, "one_step": 3.4, "two_steps": 6.5, "time_embed": 6.9, "adaln": 7}
    other = judged(view_of(tmp_path / "rule", lambda at: rule[at["model"]], lambda at: 1.01 * rule[at["model"]]))
    assert [other[name].verdict for name in names[1:]] == [HOLDS, FAILS]
    empty = judged(views.build(PLAN, tmp_path / "empty", None))
    assert {judgement.verdict for judgement in empty.values()} == {UNDECIDED}


def test_a_model_with_other_parameters_is_seen(tmp_path: Path) -> None:
    fill(tmp_path, PLAN, lambda cell: finished(parameters=7, parameters_rebuilt=6_187_264))
    found = judged(views.build(PLAN, tmp_path, None))
    assert found["ebt_adds_one_row"].verdict == FAILS
    assert [part.verdict for _, part in found["printed_counts_are_of_cut_totals"].parts] == [HOLDS, *[FAILS] * 5]
