"""Sudoku with EBT's trunk: an energy of a filled board, a classifier of one pass, and a recursion (EBT, 4.3 and D.7).

The paper gives sizes and training settings and no code; what the models read and how is our reading.  All three see a
cell as the sum of four learned vectors, for its given digit, its row, its column and its box, and attend fully.

Legend: B boards, C = 81 cells, V = 9 digits, D width, N predictions for each board.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.errors import at_least
from paper_repro.models.ebt import Energies, EnergyModel, Projection, Trunk

SIDE, CELLS, DIGITS = 9, 81, 9


class Cells(nn.Module):
    """The context: givens (B, 81), 0 for a blank, to vectors (B, 81, D), each a sum of four standard normal rows."""

    units: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.given_embedding = nn.Embedding(DIGITS + 1, width)
        self.unit_embedding = nn.Embedding(3 * SIDE, width)
        rows, columns = torch.arange(CELLS) // SIDE, torch.arange(CELLS) % SIDE  # (C,) each
        boxes = rows // 3 * 3 + columns // 3  # (C,)
        self.register_buffer("units", torch.stack([rows, SIDE + columns, 2 * SIDE + boxes]), persistent=False)  # (3, C)

    def forward(self, givens: Tensor) -> Tensor:
        if givens.ndim != 2 or givens.shape[1] != CELLS:
            raise ValueError(f"givens must have the shape (B, {CELLS}), got {tuple(givens.shape)}")
        return self.given_embedding(givens) + self.unit_embedding(self.units).sum(0)  # (B, C, D)


class SudokuFeedForward(nn.Module):
    """The feed-forward Transformer: one pass classifies all cells at once.

    Shape: givens (B, 81), int64, 0 for a blank; logits (B, 81, 9), of the digits 1 to 9.
    """

    num_iterations = 1

    def __init__(self, width: int, num_heads: int, num_layers: int, hidden: int | None = None) -> None:
        super().__init__()
        self.cells = Cells(at_least("width", width))
        self.trunk = Trunk(width, num_heads, num_layers, hidden)
        self.head = Projection(width, DIGITS)

    def forward(self, givens: Tensor) -> Tensor:
        *_, last = self.answers(givens, self.num_iterations)
        return last

    def answers(self, givens: Tensor, num_iterations: int) -> Iterator[Tensor]:
        """Yield the logits (B, 81, 9): there is one pass, whatever ``num_iterations`` says."""
        yield self.head(self.trunk(self.cells(givens), causal=False))


class SudokuRecursive(SudokuFeedForward):
    """The RNN: h <- trunk(context + h) with the same weights n times, from h = 0, and a classifier on every h.

    The paper names Jolicoeur-Martineau (arXiv 2510.04871) and 5 to 20 iterations.  Here the state is one vector for
    each cell, and gradients pass through all n = ``num_iterations``.
    """

    def __init__(
        self, width: int, num_heads: int, num_layers: int, hidden: int | None = None, num_iterations: int = 5
    ) -> None:
        super().__init__(width, num_heads, num_layers, hidden)
        self.num_iterations = at_least("num_iterations", num_iterations)

    def answers(self, givens: Tensor, num_iterations: int) -> Iterator[Tensor]:
        """Yield the logits (B, 81, 9) after each of the iterations."""
        context = self.cells(givens)  # (B, C, D)
        state = torch.zeros_like(context)  # (B, C, D)
        for _ in range(at_least("num_iterations", num_iterations)):
            state = self.trunk(context + state, causal=False)  # (B, C, D)
            yield self.head(state)  # (B, C, V)


class SudokuEBT(EnergyModel):
    """E(givens, filled board): one energy for each cell, and their sum drives all cells' predictions.

    A prediction is a distribution p over the nine digits of each cell and enters the trunk as W p, added to the
    context.  W starts standard normal, as the context's vectors do: with EBT's own start on language, Xavier-normal,
    predictions are a tenth of the context, and training is far slower.  Unlike in EBT on language the energy of a cell
    depends on the predictions of all others.

    Args:
        clamp_givens: whether a given cell enters as its digit at every step, whatever is predicted there; the paper
            does not say.
        step_size, learn_step_size: alpha at the start, of a step y - alpha dE/dp; whether it is learned.
    """

    vocabulary_size = DIGITS

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_layers: int,
        hidden: int | None = None,
        clamp_givens: bool = True,
        step_size: float = 1.5,
        learn_step_size: bool = True,
    ) -> None:
        super().__init__()
        self.clamp_givens = bool(clamp_givens)
        self.cells = Cells(at_least("width", width))
        self.prediction_embedding = Projection(DIGITS, width)
        nn.init.normal_(self.prediction_embedding.weight)
        self.trunk = Trunk(width, num_heads, num_layers, hidden)
        self.add_head(width, step_size, learn_step_size)

    def energies(self, context: Tensor) -> Energies:
        """Return the energy function of a board's givens, (B, 81); see ``EnergyModel``."""
        return partial(self._energies, context, self.cells(context))

    def _energies(self, givens: Tensor, context: Tensor, candidates: Tensor, landscape: int) -> Tensor:
        if self.clamp_givens:
            digits = (givens - 1).clamp(min=0)  # (B, C)
            known = functional.embedding(digits, self.prediction_embedding.weight.mT)  # (B, C, D)
            samples = len(candidates) // len(givens)
            blank = (givens == 0).repeat(samples, 1)[..., None]  # (N B, C, 1)
            candidates = torch.where(blank, candidates, known.repeat(samples, 1, 1))  # (N B, C, D)
        context = context.repeat(len(candidates) // len(context), 1, 1)  # (N B, C, D)
        return self.read(self.trunk(context + candidates, causal=False))
