from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED
from paper_repro.artifacts.claims import judge as judge_claim
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.render import table_of
from paper_repro.artifacts.views import View
from paper_repro.base.targets import instantiate
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.papers.nrgpt.conventions import describe, judge_fewer, readings
from paper_repro.tests.support.synthetic import fill

ARTIFACT = catalogue.load("nrgpt/table4")
COMPANION: Any = ARTIFACT.companions()[0]
MODELS = list(ARTIFACT.axes["model"].values)
PUBLISHED_COUNTS = {"gpt": 423_233, "rgpt": 888_385, "rgpt_parallel": 247_617, "ff1": 2_036_802, "ff2w": 214_466}


@cache
def _plan(scale: str) -> Plan:
    return plans.make(ARTIFACT, scale)


def _model(cell: PlannedCell) -> str:
    return dict(cell.key)["model"]


def _outcome(cell: PlannedCell, **more: Callable[[str, int], float]) -> Outcome:
    counted = instantiate(cell.config["probes"]["paper_size"]).measure(None, None, 0).metrics
    return Outcome(FINISHED, {**counted, **{name: value(_model(cell), cell.seed) for name, value in more.items()}})


def _view(root: Path, outcome: Callable[[PlannedCell], Outcome | None] = _outcome) -> View:
    fill(root, _plan("cpu"), outcome)
    return views.build(_plan("cpu"), root, None)


def _verdict(view: View, name: str) -> str:
    (claim,) = (claim for claim in ARTIFACT.claims if claim.id == name)
    return judge_claim(claim, view).verdict


def test_rows_are_trained_as_published() -> None:
    found = {}
    for cell in _plan("paper").cells:
        config, model = cell.config, cell.config["model"]
        lr = config["optimizer"]["lr"]
        layers = model.get("num_steps", model.get("num_layers"))
        last = lr * config["schedule"]["final_factor"]
        found[_model(cell)] = (lr, pytest.approx(last, rel=1e-12), layers, model["num_heads"], model["width"])
        assert config["schedule"]["_target_"].endswith("Exponential")
        assert (config["training"]["steps"], config["data"]["window"], config["data"]["batch_size"]) == (40000, 256, 64)
        assert model.get("mask", "inclusive") == "inclusive"
    assert found == {
        "gpt": (5e-3, 5e-4, 8, 4, 64),
        "rgpt": (1e-3, 1e-4, 8, 1, 256),
        "rgpt_parallel": (2e-3, 2e-4, 8, 1, 128),
        "ff1": (3e-4, 3e-5, 6, 2, 512),
        "ff2w": (1e-3, 1e-4, 8, 1, 128),
    }


@pytest.mark.parametrize("scale", ["smoke", "cpu", "gpu", "paper"])
def test_what_is_counted_is_the_model_of_the_paper_scale(scale: str) -> None:
    at_paper_size = {_model(cell): cell.config["model"] for cell in _plan("paper").cells}
    for cell in _plan(scale).cells:
        counted = cell.config["probes"]["paper_size"]["model"]
        trained = at_paper_size[_model(cell)]
        assert counted == {"_partial_": True, **{key: trained[key] for key in counted if key != "_partial_"}}
        found = instantiate(cell.config["probes"]["paper_size"]).counts()
        assert found["untied"] == PUBLISHED_COUNTS[_model(cell)]


def test_the_table_says_how_each_printed_number_was_counted(tmp_path: Path) -> None:
    table = table_of(_view(tmp_path))
    grid = table.grid()
    assert grid.headers[-1] == "n_params (M): counted as"
    assert {row[0]: row[-1] for row in grid.rows if not row[0].startswith("Floor: ")} == {
        "GPT": "untied; tied; untied without positions",
        "RGPT": "untied, truncated; tied, truncated; untied without positions",
        "RGPT-parallel": "untied; tied; untied without positions",
        "NRGPT_H_FF1": "untied; tied; untied without positions, rounded",
        "NRGPT_H_FF2W": "untied; tied; untied without positions, rounded",
    }
    (remark,) = table.remarks()
    assert "all of them follow untied, truncated; tied, truncated; untied without positions, rounded" in remark


def test_a_table_that_nobody_ran_renders(tmp_path: Path) -> None:
    table = table_of(_view(tmp_path, lambda cell: None))
    assert [row[-1] for row in table.grid().rows] == [*["not run"] * len(MODELS), ""]  # the last is the floor
    assert table.remarks() == []
    assert {judgement.verdict for _, judgement in table.judgements()} == {UNDECIDED}


def test_no_common_convention_is_said(tmp_path: Path) -> None:
    def other(cell: PlannedCell) -> Outcome:
        outcome = _outcome(cell)
        if _model(cell) == "rgpt":
            outcome.metrics = dict.fromkeys(outcome.metrics, 5000000.0)
        return outcome

    table = table_of(_view(tmp_path, other))
    assert "no single way gives all of them" in table.remarks()[0]
    assert {row[0]: row[-1] for row in table.grid().rows}["RGPT"] == "none of ours"


def test_quality_is_judged_against_every_baseline_and_without_perplexity_not_at_all(tmp_path: Path) -> None:
    def best(model: str, seed: int) -> float:
        return 0.9 + 0.001 * seed + 0.05 * (model == "ff2w")

    def not_above_rgpt(model: str, seed: int) -> float:
        return best("ff2w" if model == "rgpt" else model, seed) + 0.01 * (model == "rgpt")

    good = _view(tmp_path / "good", lambda cell: _outcome(cell, gqs_paper=best))
    assert _verdict(good, "text_quality_gqs") == HOLDS
    assert _verdict(good, "text_quality_perplexity") == UNDECIDED
    bad = _view(
        tmp_path / "bad",
        lambda cell: _outcome(cell, gqs_paper=not_above_rgpt, perplexity=lambda m, s: 300 / best(m, s)),
    )
    assert _verdict(bad, "text_quality_gqs") == FAILS
    assert _verdict(bad, "text_quality_perplexity") == HOLDS


def test_half_the_parameters_follows_the_counts(tmp_path: Path) -> None:
    assert _verdict(_view(tmp_path / "own"), "half_the_parameters") == HOLDS

    def larger(cell: PlannedCell) -> Outcome:
        outcome = _outcome(cell)
        if _model(cell) == "ff2w":
            outcome.metrics["paper_parameters_tied"] *= 2
        return outcome

    assert _verdict(_view(tmp_path / "larger", larger), "half_the_parameters") == FAILS


OWT = {
    "gpt": {"untied": 163_132_032, "tied": 124_498_560, "without_positions": 162_345_600},
    "ff2w": {"untied": 90_496_897, "tied": 51_863_425, "without_positions": 89_710_465},
}


def _on_openwebtext(cell: PlannedCell) -> Outcome:
    counts = OWT.get(_model(cell), {})
    return Outcome(FINISHED, {f"paper_parameters_{name}": float(number) for name, number in counts.items()})


def test_34_million_fewer_mixes_two_ways(tmp_path: Path) -> None:
    view = _view(tmp_path, _on_openwebtext)
    places = {"model": "gpt"}, {"model": "ff2w"}
    found = judge_fewer(view, *places, millions=34)
    assert found.verdict == FAILS
    assert "fewer by 72.6M untied, 72.6M tied" in found.because
    assert "34M mixes two ways: tied less untied" in found.because
    assert judge_fewer(view, *places, millions=72.6).verdict == HOLDS
    assert judge_fewer(view, *places, millions=20).because.endswith("without positions")  # no mixture gives it
    assert judge_fewer(view, {"model": "rgpt"}, places[1], millions=34).verdict == UNDECIDED


def test_a_number_that_no_way_gives() -> None:
    assert describe(readings("3", 1e6, {"untied": 2_036_802, "tied": 2_003_522})) == "none of ours"
    with pytest.raises(ValueError, match="unit must be above 0"):
        readings("3", 0.0, {})
