"""Training on Sudoku: through Fit, the loss by hand, answers with more steps and samples, and what is refused."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.base.configs import compose
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import FINISHED, Cell, Outcome
from paper_repro.datamodules.sudoku import GeneratedSudoku
from paper_repro.lightning_modules.ebt_sudoku import EBTSudoku, SudokuClassifier
from paper_repro.models.ebt import PredictionStep, ThinkingSettings, think, thoughts
from paper_repro.models.ebt_sudoku import SudokuEBT, SudokuFeedForward, SudokuRecursive
from paper_repro.tests.support.reports import Recorder
from paper_repro.training.fit import Fit
from paper_repro.training.schedules import Constant

DATA = (
    "data={_target_:paper_repro.datamodules.sudoku.GeneratedSudoku,num_train:40,num_val:4,num_test_each:3,"
    "train_givens:[70,76],test_givens:[60,61],batch_size:8,evaluation_batch_size:4,seed:0}"
)
SMALL = [DATA, "model.width=8", "model.num_heads=2", "model.num_layers=1", "optimizer.lr=0.02"]
QUICK = ["machine.progress_every_seconds=0.0", "training.steps=30", "training.evaluate_every=15"]
SIZES: dict[str, Any] = {"width": 8, "num_heads": 2, "num_layers": 1}
MODELS = ("sudoku_feed_forward", "sudoku_recursive", "sudoku_ebt")
OPTIMIZER = partial(torch.optim.AdamW, lr=0.01)


def run(folder: Path, model: str, *overrides: str) -> Outcome:
    config = compose("ebt/sudoku", [f"model=ebt/{model}", *SMALL, *QUICK, *overrides])
    (outcome,) = Fit().run([Cell("cell", config)], folder, Recorder())
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_loss_falls_and_every_metric_is_there(model: str, tmp_path: Path) -> None:
    outcome = run(tmp_path, model, *(["probes.accuracy.samples=[3]"] if model == "sudoku_ebt" else []))
    assert outcome.status == FINISHED
    names = {f"val_{name}" for name in ("loss", "blanks", "boards")}
    endings = ["", "_in_distribution", *(["_2x"] if model != "sudoku_feed_forward" else [])]
    probed = {"boards_of_60", "boards_of_61", *(f"{name}{end}" for name in ("boards", "blanks") for end in endings)}
    probed |= {"boards_best_of_3", "blanks_best_of_3"} if model == "sudoku_ebt" else set()
    assert outcome.metrics.keys() == names | {f"best_{name}" for name in names} | {"best_step"} | probed
    losses = [value for _, value in outcome.curves["training_loss"]]
    assert losses[-1] < 0.97 * losses[0]


def batch() -> tuple[Tensor, Tensor]:
    data = GeneratedSudoku(num_train=8, num_val=4, num_test_each=1, train_givens=[50, 60], test_givens=[60, 60])
    givens, solutions = data.train_batch(0)
    return givens[:2], solutions[:2]


def blank_loss(logits: Tensor, givens: Tensor, solutions: Tensor) -> Tensor:
    """Cross-entropy, cell by cell."""
    rows = [
        -torch.log_softmax(logits[board, cell], -1)[solutions[board, cell] - 1]
        for board, cell in (givens == 0).nonzero().tolist()
    ]
    return torch.stack(rows).mean()


def test_a_classifier_learns_from_the_blanks_after_each_iteration() -> None:
    torch.manual_seed(0)
    model = SudokuRecursive(**SIZES, num_iterations=3)
    module = SudokuClassifier(model, OPTIMIZER, Constant())
    each = [blank_loss(logits, *batch()) for logits in model.answers(batch()[0], 3)]
    torch.testing.assert_close(module.loss(batch()), torch.stack(each).mean())


@pytest.mark.parametrize("loss", ["mean", "last"])
def test_an_ebt_learns_from_the_blanks_after_each_step_or_the_last(loss: str) -> None:
    torch.manual_seed(0)
    model = SudokuEBT(**SIZES, step_size=2.0)
    module = EBTSudoku(model, OPTIMIZER, Constant(), ThinkingSettings(num_steps=3, loss=loss))
    start = torch.randn(2, 81, 9)
    found, carry = module.loss_and_carry(batch(), {"start": start}, {})
    step = PredictionStep(model.energies(batch()[0]), model.prediction_embedding.weight, model.step_size, 3)
    each = [blank_loss(thought.prediction, *batch()) for thought in thoughts(step, start)]
    torch.testing.assert_close(found, each[-1] if loss == "last" else torch.stack(each).mean())
    found.backward()
    assert carry == {} and all(parameter.grad is not None for parameter in module.parameters())
    groups, _ = module.groups_and_schedules()
    assert [len(group["params"]) for group in groups][1:] == [1] and groups[1]["weight_decay"] == 0


def test_an_answer_takes_more_iterations_or_steps_and_the_board_of_lowest_energy() -> None:
    torch.manual_seed(0)
    givens, _ = batch()
    recursive = SudokuRecursive(**SIZES, num_iterations=2)
    module = SudokuClassifier(recursive, OPTIMIZER, Constant())
    torch.testing.assert_close(module.answer(givens, 2), list(recursive.answers(givens, 4))[-1])
    model = SudokuEBT(**SIZES, step_size=5.0)
    thinker = EBTSudoku(model, OPTIMIZER, Constant(), {"num_steps": 2})
    torch.manual_seed(3)
    found = thinker.answer(givens, factor=3, num_samples=4)
    torch.manual_seed(3)
    last = list(think(model, givens, torch.randn(4, 2, 81, 9), 6))[-1]
    best = last.energies.sum(-1).argmin(0).tolist()
    torch.testing.assert_close(found, torch.stack([last.predictions[best[board], board] for board in range(2)]))
    assert len(set(best)) > 1 or best[0] != 0


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="a classifier has one answer"):
        SudokuClassifier(SudokuFeedForward(**SIZES), OPTIMIZER, Constant()).answer(batch()[0], num_samples=2)
