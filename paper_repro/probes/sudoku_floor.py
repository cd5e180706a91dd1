"""Sudoku without learning: what costs nothing to fill in, on the boards that a trained model is evaluated on."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from paper_repro.base.errors import one_of
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task
from paper_repro.datamodules.counter_based import data_of
from paper_repro.datamodules.sudoku import SudokuData
from paper_repro.datamodules.sudoku_boards import CELLS, propagated
from paper_repro.probes.sudoku_accuracy import both_splits, sudoku_of

Rule = Callable[[Sequence[int]], Sequence[int]]


def most_frequent(givens: Sequence[int]) -> list[int]:
    """Fill every blank with the digit that the givens lack most often, the smallest of several such."""
    digit = min(range(1, 10), key=lambda one: (givens.count(one), one))
    return [given or digit for given in givens]


def only_candidates(givens: Sequence[int]) -> list[int]:
    """Fill each blank whose row, column and box leave one digit, again and again; then the others as above."""
    return most_frequent(list(propagated(givens)))


RULES: dict[str, Rule] = {"most_frequent": most_frequent, "only_candidates": only_candidates}


class SudokuFloor(Task):
    """Measures a rule that needs no training, under the names of a trained model's metrics.

    Metrics: ``boards``, ``blanks`` and ``boards_of_<n>`` of the test boards, ``boards_in_distribution`` and
    ``blanks_in_distribution`` of the validation boards; see ``SudokuAccuracy``.

    Args:
        rule: "most_frequent", the digit that the givens lack most often in every blank, or "only_candidates", which
            first fills blanks that have one digit left until there are none.

    Raises:
        ValueError: an unknown rule.
    """

    def __init__(self, rule: str = "most_frequent") -> None:
        self.rule = RULES[one_of("rule", rule, RULES)]

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [self._outcome(sudoku_of(data_of(cell.config))) for cell in cells]

    def _outcome(self, data: SudokuData) -> Outcome:
        return Outcome(FINISHED, metrics=both_splits(data, self._filled), data_hashes=data.data_hashes())

    def _filled(self, givens: Tensor) -> Tensor:
        rows = [self.rule(board) for board in givens.tolist()]
        return torch.tensor(rows, dtype=givens.dtype).view(-1, CELLS)  # (B, 81)
