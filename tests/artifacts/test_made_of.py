"""What a reference is said to be made from: in the lead, the lists and below figures."""

import json
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, made_of, render, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.listing import published_listing
from paper_repro.artifacts.views import View
from paper_repro.base.command_line import RESULTS
from paper_repro.base.identity import TARGET
from paper_repro.tests.support import synthetic


def reference(name: str, scale: str = "cpu") -> View:
    return views.build(plans.make(catalogue.load(name), scale), RESULTS, None)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"files": {"manifest": "docstrings-2048/manifest.json"}}, "docstrings of installed Python packages"),
        ({"files": {"manifest": "something-something/manifest.json"}}, "Something-Something V2"),
        ({"source": {"files": {"manifest": "coco/manifest.json"}}}, "COCO"),
        ({"files": {"manifest": "mine/manifest.json"}}, "mine"),
        ({TARGET: "x.MaskedImageData", "source": {TARGET: "x.Faces"}}, "faces of Labeled Faces in the Wild"),
        ({TARGET: "x.ListOpsData", "source": None}, "ListOps"),
        ({TARGET: "x.Unknown"}, ""),
        (None, ""),
    ],
)
def test_the_words_for_data_come_from_the_config(section: Any, expected: str) -> None:
    assert made_of.data({"data": section}) == expected


@pytest.mark.parametrize(
    ("count", "text"), [(1805, "1.8k"), (48_149, "48k"), (457_280, "0.46M"), (5_475_843, "5.5M"), (162_813_024, "163M")]
)
def test_counts_have_two_digits(count: int, text: str) -> None:
    assert made_of.count_text(count) == text


def test_every_artifact_that_trains_on_data_says_on_which() -> None:
    silent = []
    for name in catalogue.find():
        artifact = catalogue.load(name)
        for scale in (word for word in ("cpu", "paper") if word in artifact.scales):
            configs = [cell.config for cell in plans.make(artifact, scale, artifact.scales[scale].seeds[:1]).cells]
            trains = [config for config in configs if isinstance(config.get("training"), dict) and "module" in config]
            if trains and not any(map(made_of.data, trains)):
                silent.append((name, scale))
    # Their cells time steps on made-up inputs.
    assert silent == [("ebt/tableD5", "cpu"), ("ebt/tableD5", "paper")]


def test_lead_list_and_footer_name_data_size_scale_and_seeds() -> None:
    view = reference("cem/fig2c")
    words = made_of.words(view)
    assert words == "docstrings of installed Python packages, 0.23M to 0.26M parameters"
    table = render.table_of(view)
    assert f"made from: {words}." in table.markdown().split("\n\n")[1] and table.document()["made_of"] == words
    figure = render.figure_of(view)
    assert figure is not None
    below = figure.footer(figure.rows())
    assert below.startswith("cem/fig2c, scale cpu; docstrings") and "; 5 seeds. " in below
    assert "made from" in published_listing(RESULTS).splitlines()[0]


def test_a_figure_of_one_seed_of_three_says_so_and_one_without_records_too(tmp_path: Path) -> None:
    figure = render.figure_of(reference("nrgpt/fig2"))
    assert figure is not None and "; 1 of 3 seeds. " in figure.footer(figure.rows())
    empty = render.figure_of(views.build(plans.make(catalogue.load("nrgpt/fig2"), "cpu"), tmp_path, None))
    assert empty is not None and "; no seed has run. " in empty.footer(empty.rows())


def test_settings_with_fewer_seeds_than_others_are_told() -> None:
    view = reference("cem/fig2c")
    point = next(iter(view.points.values()))
    for seed in (3, 4):
        del point.own[seed]
    figure = render.figure_of(view)
    assert figure is not None and "; 3 to 5 seeds. " in figure.footer(figure.rows())


def test_arithmetic_is_called_so() -> None:
    assert made_of.words(reference("ebt/tableD1", "exact")) == "arithmetic"


def test_whose_a_claim_is_stands_in_the_table_and_apart_in_the_list(tmp_path: Path) -> None:
    text = synthetic.ARTIFACT.replace("  - id: scores_close\n", "  - id: scores_close\n    ours: true\n")
    plan = synthetic.plan(tmp_path, text)
    synthetic.fill(tmp_path, plan, synthetic.near_the_paper(plan))
    table = render.table_of(views.build(plan, tmp_path, None))
    rows = {row[0]: row[1] for row in table.claims_grid().rows if row[0]}
    assert rows == {"old_above_new": "paper: Table 1", "scores_close": "ours: Table 1"}
    assert [claim["whose"] for claim in json.loads(json.dumps(table.document()))["claims"]] == ["paper", "ours"]


def test_a_fitted_table_is_not_called_reproduced_and_has_a_total(tmp_path: Path) -> None:
    plan = synthetic.plan(tmp_path, synthetic.ARTIFACT + "fitted: true\n")
    synthetic.fill(tmp_path, plan, synthetic.near_the_paper(plan))
    table = render.table_of(views.build(plan, tmp_path, None))
    text = table.markdown()
    assert "fitted (" in text and "reproduced (" not in text
    assert "4 of 4 measured numbers lie within 1 published standard deviation of the published mean" in text
    assert any(note.startswith("Fitted (Error) means") for note in table.notes())
    plain = synthetic.plan(tmp_path / "plain")
    assert render.table_of(views.build(plain, tmp_path, None)).total() == ""
