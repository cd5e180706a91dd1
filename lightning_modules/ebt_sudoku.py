"""EBT, section 4.3 and D.7: Sudoku by one pass, by recursion and by descending an energy; boards judged by the rules.

A batch is (givens, solutions), (B, 81) each, int64; 0 is a blank.  Losses are over the blank cells.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torchmetrics import Metric

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.identity import IGNORED
from paper_repro.lightning_modules.prediction_descent import Pair, PredictionDescent
from paper_repro.metrics.likelihood import (
    CrossEntropy,
    mean_cross_entropy,
    num_counted,
    summed_negative_log_likelihood,
)
from paper_repro.metrics.sudoku import RightBlanks, SolvedBoards, filled
from paper_repro.models.ebt import think
from paper_repro.models.ebt_sudoku import SudokuEBT, SudokuFeedForward
from paper_repro.training.module import Draws, PaperModule
from paper_repro.training.steps import Tree


def targets_of(givens: Tensor, solutions: Tensor) -> Tensor:
    """Return the class of each blank's digit, 0 to 8, and -100 at givens, (B, 81)."""
    return torch.where(givens == 0, solutions - 1, IGNORED)


class Boards(PaperModule):
    """Metrics of answers: ``loss``, in nats per blank, and the shares of ``blanks`` right and of ``boards`` solved."""

    def answer(self, givens: Tensor, factor: int = 1, num_samples: int = 1) -> Tensor:
        """Return logits (B, 81, 9) after ``factor`` times the iterations or steps of training."""
        raise NotImplementedError

    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": CrossEntropy(), "blanks": RightBlanks(), "boards": SolvedBoards()}

    def update_metrics(self, metrics: dict[str, Metric], batch: Pair) -> None:
        givens, solutions = batch
        logits = self.answer(givens)  # (B, 81, 9)
        boards = filled(givens, logits)  # (B, 81)
        metrics["loss"].update(*summed_negative_log_likelihood(logits, targets_of(givens, solutions)))
        metrics["blanks"].update(givens, boards, solutions)
        metrics["boards"].update(givens, boards)


class SudokuClassifier(Boards):
    """The baselines: mean cross-entropy of the blanks after each iteration; the feed-forward Transformer has one."""

    model: SudokuFeedForward

    def loss(self, batch: Pair) -> Tensor:
        givens, solutions = batch
        targets = targets_of(givens, solutions)  # (B, C)
        answers = self.model.answers(givens, self.model.num_iterations)
        return torch.stack([mean_cross_entropy(logits, targets) for logits in answers]).mean()

    def num_targets(self, batch: Pair, draws: Draws | None = None, carry: Tree = None) -> Tensor:
        return num_counted(targets_of(*batch))

    def answer(self, givens: Tensor, factor: int = 1, num_samples: int = 1) -> Tensor:
        """Return logits (B, 81, 9) after ``factor`` times the iterations of training.

        Raises:
            UsageError: several samples, among which there is nothing to choose.
        """
        if num_samples != 1:
            raise UsageError(f"num_samples={num_samples}: a classifier has one answer; only an EBT chooses by energy")
        *_, last = self.model.answers(givens, at_least("factor", factor) * self.model.num_iterations)
        return last


class EBTSudoku(PredictionDescent, Boards):
    """EBT on Sudoku: boards in the place of texts, and blank cells in that of tokens.

    Evaluations begin from fresh normal numbers and take the most steps of training, without noise.
    """

    model: SudokuEBT

    def read(self, batch: Pair) -> Pair:
        givens, solutions = batch
        return givens, targets_of(givens, solutions)

    def answer(self, givens: Tensor, factor: int = 1, num_samples: int = 1) -> Tensor:
        """Return logits (B, 81, 9) after ``factor`` times the steps of training.

        Of several samples of a board, the one whose cells' energies have the lowest sum is taken.
        """
        steps = at_least("factor", factor) * self.thinking.longest
        settings = replace(self.thinking, num_steps=steps, most_steps=None, noise=0.0)
        start = self.noise(givens, at_least("num_samples", num_samples))  # (N, B, C, V)
        *_, last = think(self.model, givens, start, steps, settings)
        best = last.energies.sum(-1).argmin(0)  # (B,)
        return last.predictions[best, torch.arange(len(givens), device=best.device)]  # (B, C, V)
