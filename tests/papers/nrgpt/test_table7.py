import math
from pathlib import Path
from typing import Any

import pytest

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement
from paper_repro.artifacts.claims import judge as judge_claim
from paper_repro.artifacts.views import View
from paper_repro.base import config as configs
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.papers.nrgpt.table7 import GridCheck
from paper_repro.tests.support.synthetic import fill

OWT = "nrgpt/owt"
PLAN = plans.make(catalogue.load("nrgpt/table7"), "exact")


def _check(**spec: Any) -> Outcome:
    whole = {"key": None, "ours": None, "table7": [1], "sweep": [1], "best": None, **spec}
    (outcome,) = GridCheck().run([Cell("cell", {"hyperparameter": whole})], Path(), None)  # type: ignore[arg-type]
    return outcome


def _outcome(cell: PlannedCell) -> Outcome:
    return _check(**cell.config["hyperparameter"])


def _judged(view: View) -> dict[str, Judgement]:
    return {claim.id: judge_claim(claim, view) for claim in view.artifact.claims}


@pytest.mark.parametrize(
    ("value", "grid", "inside"),
    [
        (3, [3, 6], True),
        (4, [3, 6], False),
        ([6e-4, 4e-4], [1.2, 1.5], True),
        ([1e-4, 7e-5], [1.2, 1.5, 2], False),
        ([7e-4, 7e-5], {"low": 1, "high": 10}, True),
        (1e-3, {"low": 1e-5, "high": 1e-3}, True),
        (1.1e-3, {"low": 1e-5, "high": 1e-3}, False),
        (9e-6, {"low": 1e-5, "high": 1e-3}, False),
    ],
)
def test_a_value_lies_in_a_list_or_a_range(value: Any, grid: Any, inside: bool) -> None:
    outcome = _check(best={"table1": value}, ours=value, table7=grid)
    assert outcome.metrics["table7/table1"] == outcome.metrics["ours_in_table7"] == inside
    assert outcome.metrics["outside_table7"] == (not inside)


def test_what_no_row_prints_is_said_and_not_counted() -> None:
    outcome = _check()
    assert outcome.metrics == {}
    assert outcome.unavailable == dict.fromkeys(["outside_table7", "outside_sweep"], "no best row prints it")


def test_the_papers_own_rows_against_both_grids(tmp_path: Path) -> None:
    fill(tmp_path, PLAN, _outcome)
    judged = _judged(views.build(PLAN, tmp_path, None))

    def outside(claim: str) -> dict[str, str]:
        return {label: part.because for label, part in judged[claim].parts if part.verdict == FAILS}

    assert outside("best_rows_in_table7") == {"Table 5, RGPT-parallel": "outside: Width"}
    assert outside("best_rows_in_sweep") == {
        "Tables 2 and 8, FF2W": "outside: Learning rate / its last value",
        "Table 5, RGPT-parallel": "outside: Layers or steps, Width",
        "Table 5, FF2W": "outside: Layers or steps",
    }
    assert judged["ours_in_table7"].because == "outside: Micro-batches a step"
    assert judged["ours_in_sweep"].verdict == HOLDS


def test_verdicts_follow_the_records(tmp_path: Path) -> None:
    empty = views.build(PLAN, tmp_path / "empty", None)
    assert {judgement.verdict for judgement in _judged(empty).values()} == {UNDECIDED}

    def all_inside(cell: PlannedCell) -> Outcome:
        outcome = _outcome(cell)
        outcome.metrics = dict.fromkeys(outcome.metrics, 1.0)
        return outcome

    fill(tmp_path, PLAN, all_inside)
    full = views.build(PLAN, tmp_path, None)
    assert {judgement.verdict for judgement in _judged(full).values()} == {HOLDS}


def test_combinations_multiply_lists_and_leave_out_widths_that_heads_do_not_divide(tmp_path: Path) -> None:
    companion = PLAN.artifact.companions()[0]
    found = companion.Table7(views.build(PLAN, tmp_path, None)).summary()
    layers, heads, widths, decays, warmups = 5, 6, 3, 2, 2
    assert found["combinations_table7"] == layers * heads * widths * decays * warmups
    indivisible = sum(width % head != 0 for width in (768, 1020, 1536) for head in (1, 2, 4, 6, 12, 16))
    assert found["fitting_table7"] == layers * (heads * widths - indivisible) * decays * warmups
    assert found["combinations_sweep"] == found["fitting_sweep"] == 4 * 4 * 8 * 2 * 2 * 2


def test_the_table_prints_the_grids(tmp_path: Path) -> None:
    fill(tmp_path, PLAN, _outcome)
    companion = PLAN.artifact.companions()[0]
    grid = companion.Table7(views.build(PLAN, tmp_path, None)).grid()
    rows = {row[0]: row[1:] for row in grid.rows}
    assert rows["Heads"] == ["1, 2, 4, 6, 12, 16", "1, 2, 6, 12", "12", "0", "0"]
    assert rows["Learning rate"][:3] == ["1e-05 to 0.001", "1e-05 to 0.001", "0.0006"]
    assert rows["Dropout"][-1] == "n/a: no best row prints it"


def test_ours_is_what_the_experiment_has() -> None:
    config = configs.compose(OWT)
    in_own_terms = {
        "schedule.final_factor": lambda factor: 1 / factor,
        "schedule.warmup_fraction": lambda fraction: fraction * config["training"]["steps"],
    }
    compared = 0
    for cell in PLAN.cells:
        spec = cell.config["hyperparameter"]
        assert (spec["key"] is None) == (spec["ours"] is None)
        if spec["key"] is not None:
            *parents, last = spec["key"].split(".")
            found = configs.lookup(config, ".".join(parents))
            value = found[int(last)] if isinstance(found, list) else found[last]
            assert math.isclose(in_own_terms.get(spec["key"], float)(value), spec["ours"]), spec["key"]
            compared += 1
    assert compared == len(PLAN.cells) - 1
