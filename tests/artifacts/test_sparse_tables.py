"""A sparse table says of some cells that they were not run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paper_repro.artifacts import views
from paper_repro.artifacts.plan import Plan
from paper_repro.artifacts.sparse_tables import SparseTable
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Outcome
from paper_repro.tests.support import synthetic

NOT_RUN = "not run"
Runs = Callable[[PlannedCell], Outcome | None]


def nothing(cell: PlannedCell) -> None:
    return None


def of_old_without_score(cell: PlannedCell) -> Outcome:
    """The old model has an error alone."""
    return synthetic.finished(error=1.0, **({} if ("model", "old") in cell.key else {"score": 50.0}))


def of_new_alone(cell: PlannedCell) -> Outcome | None:
    return of_old_without_score(cell) if ("model", "new") in cell.key else None


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return synthetic.plan(tmp_path)


def shown(folder: Path, plan: Plan, reference: Runs | None, own: Runs) -> dict[str, dict[str, str]]:
    """Return the cells of the two models of the easy task, by header; without a reference that of runs/ is asked."""
    synthetic.fill(folder / "runs", plan, own)
    if reference is not None:
        synthetic.fill(folder / "results", plan, reference)
    grid = SparseTable(views.build(plan, folder / "runs", folder / "results")).grid(("", ""))
    rows = [dict(zip(grid.headers, row, strict=True)) for row in grid.rows if row[0] == "Easy"]
    return dict(zip(("old", "new"), rows, strict=True))


def test_beside_a_reference_what_the_user_has_not_run_is_said(tmp_path: Path, plan: Plan) -> None:
    found = shown(tmp_path, plan, of_old_without_score, nothing)
    assert found["new"]["Error: reference"] == "1.00 ± 0.00" and found["new"]["Error: yours"] == NOT_RUN
    assert found["old"]["Error: yours"] == NOT_RUN and found["new"]["Score: yours"] == NOT_RUN
    assert found["old"]["Score: reference"] == found["old"]["Score: yours"] == ""


def test_a_metric_that_a_finished_row_does_not_have_is_left_empty(tmp_path: Path, plan: Plan) -> None:
    found = shown(tmp_path, plan, of_old_without_score, of_old_without_score)
    assert found["old"]["Score: reference"] == found["old"]["Score: yours"] == ""
    assert found["new"]["Score: yours"] == "50.0 ± 0.0"


def test_of_two_models_the_one_that_was_not_run_is_told(tmp_path: Path, plan: Plan) -> None:
    found = shown(tmp_path, plan, of_old_without_score, of_new_alone)
    assert found["old"]["Error: yours"] == found["old"]["verdict"] == NOT_RUN
    assert found["old"]["Score: reference"] == found["old"]["Score: yours"] == ""
    alone = shown(tmp_path / "alone", plan, None, of_new_alone)
    assert (
        alone["old"]["Error: yours"] == alone["old"]["Score"] == NOT_RUN
        and alone["new"]["Error: yours"] == "1.00 ± 0.00"
    )
