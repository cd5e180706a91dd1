"""Sudoku, judged by its rules: a board counts as solved if it is legal and keeps its givens, whatever a label says."""

import torch
from torch import Tensor

from paper_repro.metrics.pooled import PooledMean

SIDE = 9


def legal(boards: Tensor) -> Tensor:
    """Return whether every row, column and box holds the digits 1 to 9, each once; (..., 81) -> (...), bool."""
    rows = boards.view(*boards.shape[:-1], SIDE, SIDE)  # (..., 9, 9)
    boxes = boards.view(*boards.shape[:-1], 3, 3, 3, 3).transpose(-3, -2).flatten(-4, -3).flatten(-2)  # (..., 9, 9)
    units = torch.stack([rows, rows.transpose(-1, -2), boxes], dim=-3)  # (..., 3, 9, 9)
    digits = torch.arange(1, SIDE + 1, device=boards.device)
    return (units.sort(dim=-1).values == digits).flatten(-3).all(-1)


def solved(givens: Tensor, boards: Tensor) -> Tensor:
    """Return whether filled boards are legal and keep their givens; both (..., 81) -> (...), bool."""
    return legal(boards) & ((givens == 0) | (givens == boards)).all(-1)


def filled(givens: Tensor, logits: Tensor) -> Tensor:
    """Return the givens, (B, 81), with the likeliest digit in each blank, by logits (B, 81, 9) of the digits 1 to 9."""
    return torch.where(givens == 0, logits.argmax(-1) + 1, givens)


class SolvedBoards(PooledMean):
    """Share of boards that are solved as a whole.

    Shape: givens (B, 81), 0 for a blank, and filled boards (B, 81).  Unit: share, 0 to 1.
    """

    counted = "boards"

    def update(self, givens: Tensor, boards: Tensor) -> None:
        found = solved(givens, boards)  # (B,)
        self._add(found.sum(), found.numel())


class RightBlanks(PooledMean):
    """Share of blank cells whose digit is that of the solution.

    Shape: givens, filled boards and solutions, each (B, 81).  Unit: share, 0 to 1.
    """

    counted = "blank cells"

    def update(self, givens: Tensor, boards: Tensor, solutions: Tensor) -> None:
        blank = givens == 0  # (B, 81)
        self._add((blank & (boards == solutions)).sum(), blank.sum())
