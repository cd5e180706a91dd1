"""Shares of solved boards by number of givens, and the floors, on models and rules that are known."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paper_repro.cells.tasks import Cell
from paper_repro.datamodules.sudoku import GeneratedSudoku
from paper_repro.datamodules.sudoku_boards import CELLS, UNITS, check_board, full_board, propagated, puzzle
from paper_repro.metrics.sudoku import RightBlanks, SolvedBoards, filled, legal, solved
from paper_repro.probes.floors import SudokuFloor, most_frequent, only_candidates
from paper_repro.probes.sudoku_accuracy import SudokuAccuracy, accuracies
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Constant

OPTIONS = {"num_train": 2, "num_val": 3, "num_test_each": 4, "train_givens": [60, 60], "test_givens": [29, 31]}


class Knows(PaperModule):
    """Solves boards of 31 givens, those of 30 with twice the steps, and those of 29 with four samples."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1), partial(torch.optim.SGD, lr=0.1), Constant())
        self.asked: list[tuple[int, int]] = []

    def answer(self, givens: Tensor, factor: int = 1, num_samples: int = 1) -> Tensor:
        self.asked.append((factor, num_samples))
        rows = []
        for board in givens.tolist():
            count = sum(digit > 0 for digit in board)
            knows = count == 31 or (count == 30 and factor == 2) or (count == 29 and num_samples == 4)
            rows.append(check_board(board) if knows else most_frequent(board))
        return nn.functional.one_hot(torch.tensor(rows) - 1, 9).float()

    def new_metrics(self) -> dict[str, Any]:
        return {}

    def update_metrics(self, metrics: dict[str, Any], batch: Any) -> None:
        pass


def test_boards_are_counted_by_givens_by_steps_and_by_samples() -> None:
    data = GeneratedSudoku(**OPTIONS, evaluation_batch_size=5)
    module = Knows()
    found = SudokuAccuracy(factors=(2,), samples=(4,)).measure(module, data, seed=0).metrics
    third = pytest.approx(1 / 3)
    assert {name: value for name, value in found.items() if "boards" in name} == {
        "boards": third,
        "boards_in_distribution": 0.0,
        "boards_of_29": 0.0,
        "boards_of_30": 0.0,
        "boards_of_31": 1.0,
        "boards_2x": pytest.approx(2 / 3),
        "boards_best_of_4": pytest.approx(2 / 3),
    }
    assert found["blanks"] < found["blanks_2x"] < 1
    blanks = {f"blanks{ending}" for ending in ("", "_in_distribution", "_2x", "_best_of_4")}
    assert {name for name in found if "boards" not in name} == blanks
    assert set(module.asked) == {(1, 1), (2, 1), (1, 4)}
    assert accuracies(data, "test", lambda givens: filled(givens, module.answer(givens)))["boards"] == third


def test_the_floors_fill_by_rules() -> None:
    board, solution = puzzle(1, 60)
    assert only_candidates(list(board)) == list(solution)
    counts = [board.count(digit) for digit in range(1, 10)]
    lacking = counts.index(min(counts)) + 1
    assert [new for new, given in zip(most_frequent(list(board)), board, strict=True) if not given] == [lacking] * 21
    hard, _ = puzzle(2, 24)
    some = propagated(hard)
    assert 0 in some
    kept = [new == old for new, old in zip(only_candidates(list(hard)), some, strict=True) if old]
    assert all(kept)


@pytest.mark.parametrize("rule", ["most_frequent", "only_candidates"])
def test_a_floor_is_measured_under_the_names_of_a_model(rule: str, tmp_path: Path) -> None:
    data = {"_target_": "paper_repro.datamodules.sudoku.GeneratedSudoku", **OPTIONS, "train_givens": [62, 62]}
    cell = Cell("cell", {"data": data, "seed": 0})
    (outcome,) = SudokuFloor(rule).run([cell], tmp_path, None)  # type: ignore[arg-type]
    assert outcome.metrics.keys() == {
        *(f"{name}{ending}" for name in ("boards", "blanks") for ending in ("", "_in_distribution")),
        *(f"boards_of_{count}" for count in (29, 30, 31)),
    }
    assert outcome.metrics["boards_in_distribution"] == (rule == "only_candidates") and outcome.metrics["boards"] < 0.5


BOARD = torch.tensor(full_board(random.Random(0)))


def test_a_board_is_legal_only_if_every_row_column_and_box_has_all_digits():
    assert legal(BOARD)
    for cells in UNITS:
        wrong = BOARD.clone()
        wrong[cells[0]] = wrong[cells[1]]
        assert not legal(wrong)
    rows_alone = torch.arange(1, 10).repeat(9)
    columns_alone = rows_alone.view(9, 9).T.reshape(-1)
    latin = torch.tensor([[(row + column) % 9 + 1 for column in range(9)] for row in range(9)]).view(-1)
    assert not legal(torch.stack([rows_alone, columns_alone, latin])).any()
    assert not legal(torch.zeros(CELLS, dtype=torch.int64))
    assert legal(torch.stack([BOARD, latin]).view(1, 2, CELLS)).tolist() == [[True, False]]


def test_a_legal_board_that_changes_a_given_is_not_solved():
    givens = torch.where(torch.arange(CELLS) % 2 == 0, BOARD, 0)
    renamed = BOARD % 9 + 1
    assert legal(renamed) and solved(givens, BOARD) and not solved(givens, renamed)
    assert solved(torch.zeros_like(givens), renamed)


def test_the_judge_asks_the_rules_and_not_the_label():
    """Two solutions of one board are both right, whichever of them the label has."""
    metric = SolvedBoards()
    blank = torch.zeros(2, CELLS, dtype=torch.int64)
    metric.update(blank, torch.stack([BOARD, BOARD % 9 + 1]))
    assert metric.compute() == 1
    metric.update(BOARD.repeat(2, 1), torch.stack([BOARD % 9 + 1, torch.ones_like(BOARD)]))
    assert metric.compute() == 0.5


def test_right_blanks_are_counted_over_all_batches_and_givens_left_out():
    metric = RightBlanks()
    givens = BOARD.clone()
    givens[:4] = 0
    filled = BOARD.clone()
    filled[0] = BOARD[0] % 9 + 1
    metric.update(givens[None], filled[None], BOARD[None])
    assert metric.compute() == 0.75
    givens[4:12] = 0
    metric.update(givens[None], BOARD[None], BOARD[None])
    assert metric.compute() == pytest.approx(15 / 16)
