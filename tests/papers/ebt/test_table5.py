"""Table 5 of EBT: the claims follow the records, and the figure draws what they hold."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, judge
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Outcome
from paper_repro.papers.ebt.table5 import Figure5
from paper_repro.tests.support.synthetic import fill, finished

CPU = plans.make(catalogue.load("ebt/table5"), "cpu")
PRINTED = {"ebt": 0.297, "rnn": 0.177, "feed_forward": 0.0003}
FLOOR = 0.14


def view_of(root: Path, boards: Mapping[str, float], blanks: float = 0.8) -> views.View:
    """Records with these shares of boards, more of them with more steps and samples, a little apart by seed."""

    def outcome(cell: PlannedCell) -> Outcome:
        model = dict(cell.key)["model"]
        spread = 1 + 0.01 * (cell.seed - 1)
        solved = spread * boards.get(model, 0.2)
        more = {"boards_2x": 1.2 * solved, "boards_best_of_10": 1.1 * solved}
        by_givens = {"boards_of_30": solved, "boards_of_40": 2 * solved}
        return finished(boards=solved, blanks=spread * blanks, **more, **by_givens)

    fill(root, CPU, outcome, {"boards": 0.1, "blanks": FLOOR, "boards_of_30": 0.2, "boards_of_40": 0.3})
    return views.build(CPU, root, None)


def judged(view: views.View) -> dict[str, Judgement]:
    return {claim.id: judge(claim, view) for claim in view.artifact.claims}


def test_the_printed_numbers_have_the_claimed_order(tmp_path: Path) -> None:
    found = judged(view_of(tmp_path, PRINTED))
    assert {name: judgement.verdict for name, judgement in found.items()} == dict.fromkeys(found, HOLDS)
    assert {claim.catalogue for claim in CPU.artifact.claims} == {"sudoku_order", None}


@pytest.mark.parametrize("best", ["rnn", "feed_forward"])
def test_another_order_refutes_the_claim(best: str, tmp_path: Path) -> None:
    assert judged(view_of(tmp_path, {**PRINTED, best: 0.4}))["sudoku_order"].verdict == FAILS


def test_models_at_the_floor_or_without_a_board_decide_nothing(tmp_path: Path) -> None:
    at_floor = judged(view_of(tmp_path / "floor", PRINTED, blanks=FLOOR))["sudoku_order"]
    assert at_floor.verdict == NOT_JUDGED and "Blanks right (%) 14.00" in at_floor.parts[0][1].because
    unsolved = judged(view_of(tmp_path / "none", {**PRINTED, "ebt": 0.0}))["sudoku_order"]
    assert unsolved.parts[0][1].verdict == NOT_JUDGED and "No board solved 0.00" in unsolved.parts[0][1].because
    assert unsolved.parts[1][1].verdict == HOLDS  # the RNN is above the feed-forward model, which may solve nothing
    assert judged(views.build(CPU, tmp_path / "empty", None))["sudoku_order"].verdict == UNDECIDED


def test_the_figure_draws_boards_over_blanks_and_nothing_for_no_records(tmp_path: Path) -> None:
    figure = Figure5(view_of(tmp_path, PRINTED))
    rows = figure.rows()
    assert {(row["model"], row["blanks"], row["seed"]): row["solved"] for row in rows}["ebt", 51, 1] == pytest.approx(
        29.7, rel=1e-5
    )
    assert {row["blanks"] for row in rows if row["model"] == "ebt"} == {41, 51}
    assert {(row["blanks"], row["solved"]) for row in rows if row["model"] == "rules"} == {(51, 20.0), (41, 30.0)}
    assert [path.name for path in figure.write(tmp_path)] == ["figure.csv", "figure.png", "figure.svg"]
    empty = Figure5(views.build(CPU, tmp_path / "empty", None))
    assert empty.rows() == [] and len(empty.write(tmp_path / "drawn")) == 3
