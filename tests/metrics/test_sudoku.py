import random

import pytest
import torch

from paper_repro.datamodules.sudoku_boards import CELLS, UNITS, full_board
from paper_repro.metrics.sudoku import RightBlanks, SolvedBoards, legal, solved

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
