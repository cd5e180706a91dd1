"""What an EBT thinks of a Sudoku board: digits and energies of all cells by step, judged by the rules.

Legend: N samples, C = 81 cells, P cells that are free, V = 9 digits, D width, S steps, M points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paper_repro.metrics.sudoku import filled, solved
from paper_repro.models.ebt_sudoku import SudokuEBT
from paper_repro.probes.thoughts.surface import Surface, surfaces
from paper_repro.probes.thoughts.terminal import Shader
from paper_repro.probes.thoughts.trace import Manner, Trace, trace


@dataclass(frozen=True)
class BoardThought:
    """What was thought of one board in S steps, by the sample whose cells' energies have the lowest sum at the end."""

    sample: int
    boards: list[list[int]]
    """The filled board, 81 digits, after 0, 1, ..., S steps."""
    energies: list[list[float]]
    """The energies of its cells."""
    accepted: list[bool]
    """Whether the board obeys the rules and keeps its givens."""
    trace: Trace
    """Its kept places are all cells."""


def think_of_board(model: SudokuEBT, givens: Sequence[int], num_steps: int, manner: Manner) -> BoardThought:
    """Think about a board of 81 digits, 0 for a blank.

    Raises:
        ValueError: as ``trace``.
    """
    ids = _batch(model, givens)  # (1, C)
    found = trace(model, ids, num_steps, manner, kept=ids.shape[1])
    sample = int(found.energies[-1].sum(-1).argmin())
    boards = filled(ids, found.kept[:, sample])  # (S + 1, C)
    energies = found.energies[:, sample]  # (S + 1, C)
    return BoardThought(sample, boards.tolist(), energies.tolist(), solved(ids, boards).tolist(), found)


@torch.no_grad()
def around(model: SudokuEBT, givens: Sequence[int], thought: BoardThought) -> list[Surface]:
    """Return the energy of the whole board around its last prediction; given cells that are clamped do not move."""
    ids = _batch(model, givens)
    free = ids[0] == 0 if model.clamp_givens else torch.ones_like(ids[0], dtype=torch.bool)  # (C,)
    energies = model.energies(ids)

    def of_free(candidates: Tensor, landscape: int) -> Tensor:
        whole = candidates.new_zeros((len(candidates), len(free), candidates.shape[-1]))  # (M, C, D)
        whole[:, free] = candidates  # (M, P, D)
        return energies(whole, landscape)  # (M, C)

    return surfaces(model, of_free, thought.trace.kept[:, thought.sample][:, free])


def _batch(model: SudokuEBT, givens: Sequence[int]) -> Tensor:
    return torch.tensor([list(givens)], device=model.prediction_embedding.weight.device)  # (1, C)


def print_board(
    thought: BoardThought, givens: Sequence[int], solution: Sequence[int], steps: Sequence[int], shade: Shader
) -> None:
    """Print a verdict, and the board after these steps: digits, wrong ones with a star, and the energies of cells."""
    board = thought.boards[-1]
    blanks = [cell for cell, digit in enumerate(givens) if not digit]
    right = sum(board[cell] == solution[cell] for cell in blanks)
    verdict = "accepts" if thought.accepted[-1] else "does not accept"
    print(
        f"\nsteps {thought.trace.num_steps}, NFE {thought.trace.num_evaluations}, sample {thought.sample}: the judge "
        f"{verdict} the board; {right} of {len(blanks)} blanks as in the solution, the others have *"
    )
    for step in steps:
        board, energies = thought.boards[step], thought.energies[step]
        said = ", accepted" if thought.accepted[step] else ""
        print(f"after step {step}{said}: energy {sum(energies):.6g}, of each cell on the right")
        for first in range(0, 81, 9):
            cells = range(first, first + 9)
            digits = (
                shade(f"{board[cell]}{' ' if board[cell] == solution[cell] else '*'}", energies[cell]) for cell in cells
            )
            print(" ".join(digits), " ", " ".join(shade(f"{energies[cell]:>8.3g}", energies[cell]) for cell in cells))
