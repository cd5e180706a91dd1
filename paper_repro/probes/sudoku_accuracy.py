"""EBT, section 4.3: Sudoku boards solved, by their number of givens and by how long a model may think."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.sudoku import TEST, VAL, SudokuData
from paper_repro.metrics.sudoku import RightBlanks, SolvedBoards, filled, solved
from paper_repro.training.module import PaperModule

Fill = Callable[[Tensor], Tensor]  # filled boards (B, 81) of givens (B, 81)


@dataclass(frozen=True)
class SudokuAccuracy:
    """Shares between 0 and 1, higher is better, of the test boards.

    * ``boards`` and ``blanks``: solved boards and right blanks, with the steps of training.
    * ``boards_of_<n>``: solved among the boards with n givens.
    * ``boards_in_distribution`` and ``blanks_in_distribution``: of validation boards, which are as those of training.
    * ``boards_<factor>x`` and ``blanks_<factor>x``: with so many times the steps.
    * ``boards_best_of_<N>`` and ``blanks_best_of_<N>``: where of N samples that of lowest energy is taken.

    Args:
        factors: how many times the steps of training, each above 1.
        samples: numbers N; only for a model with an energy.
    """

    factors: Sequence[int] = (2,)
    samples: Sequence[int] = ()

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        if not isinstance(data, SudokuData):
            raise UsageError(f"this measures Sudoku boards, the data are {type(data).__name__}")
        if not hasattr(module, "answer"):
            raise UsageError(f"probes.accuracy asks for boards, which {type(module).__name__} does not answer")
        ways = {f"{factor}x": (factor, 1) for factor in self.factors}
        ways |= {f"best_of_{count}": (1, count) for count in self.samples}
        torch.manual_seed(mix(seed, "sudoku", "accuracy"))
        found = both_splits(data, _answered(module, 1, 1))
        for name, (factor, count) in ways.items():
            torch.manual_seed(mix(seed, "sudoku", "accuracy", name))
            shares = accuracies(data, TEST, _answered(module, factor, count))
            found |= {f"{kind}_{name}": shares[kind] for kind in ("boards", "blanks")}
        return Findings(found)


def both_splits(data: SudokuData, fill: Fill) -> dict[str, float]:
    """Return the accuracies of the test boards, and those of the validation boards as ``<name>_in_distribution``."""
    own = accuracies(data, VAL, fill)
    return accuracies(data, TEST, fill) | {f"{kind}_in_distribution": own[kind] for kind in ("boards", "blanks")}


def accuracies(data: SudokuData, split: str, fill: Fill) -> dict[str, float]:
    """Return ``boards``, ``blanks`` and ``boards_of_<n>``, by number of givens, of a split."""
    boards, blanks = SolvedBoards(), RightBlanks()
    right: dict[int, list[bool]] = {}
    with torch.no_grad():
        for givens, solutions in data.evaluation_batches(split):
            found = fill(givens)  # (B, 81)
            boards.update(givens, found)
            blanks.update(givens, found, solutions)
            counts = (givens > 0).sum(-1).tolist()  # B
            for count, good in zip(counts, solved(givens, found).tolist(), strict=True):
                right.setdefault(count, []).append(good)
    by_givens = {f"boards_of_{count}": sum(good) / len(good) for count, good in sorted(right.items())}
    return {"boards": float(boards.compute()), "blanks": float(blanks.compute()), **by_givens}


def _answered(module: Any, factor: int, count: int) -> Fill:
    """Return boards as a module fills them by its ``answer``: logits (B, 81, 9) after ``factor`` times the steps of
    training, by the best of ``count`` samples.
    """

    def fill(givens: Tensor) -> Tensor:
        there = givens.to(module.device)
        return filled(there, module.answer(there, factor, count)).to(givens.device)

    return fill
