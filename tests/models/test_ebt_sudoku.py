"""The three Sudoku models: what they read, what they share, and what an EBT's step does to a board."""

from typing import Any

import pytest
import torch

from paper_repro.datamodules.sudoku_boards import puzzle
from paper_repro.models.ebt import CODE, LISTING, PredictionStep, ThinkingSettings, thoughts
from paper_repro.models.ebt_sudoku import SudokuEBT, SudokuFeedForward, SudokuRecursive
from paper_repro.tests.support.float64 import randomised, tokens

SIZES: dict[str, Any] = {"width": 8, "num_heads": 2, "num_layers": 2, "hidden": 12}
GIVENS = torch.tensor([puzzle(seed, 40)[0] for seed in range(2)])
BLANK = GIVENS == 0


def ebt(**options: Any) -> SudokuEBT:
    model: SudokuEBT = randomised(SudokuEBT(**SIZES, step_size=0.7, learn_step_size=False, **options))
    return model


def test_cells_know_their_row_column_and_box_and_nothing_else_of_their_place() -> None:
    """A model whose vectors of rows, columns and boxes are exchanged treats an exchanged board alike."""
    model = randomised(SudokuFeedForward(**SIZES))
    rows = torch.tensor([3, 5, 4, 0, 1, 2, 6, 8, 7])  # two bands exchanged, and rows within bands
    moved = GIVENS.view(-1, 9, 9)[:, rows].reshape(-1, 81)
    expected = model(GIVENS).view(-1, 9, 9, 9)[:, rows].reshape(-1, 81, 9)
    with torch.no_grad():
        table = model.cells.unit_embedding.weight  # rows, columns, boxes
        boxes = torch.tensor([3, 4, 5, 0, 1, 2, 6, 7, 8])
        table[:9] = table[:9][rows]
        table[18:] = table[18:][boxes]
    torch.testing.assert_close(model(moved), expected, rtol=1e-10, atol=1e-10)


def test_a_recursion_of_one_iteration_is_the_feed_forward_pass_and_more_go_on_from_it() -> None:
    model = randomised(SudokuRecursive(**SIZES, num_iterations=3))
    plain = randomised(SudokuFeedForward(**SIZES))
    plain.load_state_dict(model.state_dict())
    answers = list(model.answers(GIVENS, 4))
    torch.testing.assert_close(answers[0], plain(GIVENS))
    torch.testing.assert_close(answers[2], model(GIVENS))
    context = model.cells(GIVENS)
    state = model.trunk(context + model.trunk(context, causal=False), causal=False)
    torch.testing.assert_close(answers[1], model.head(state))
    assert len(answers) == 4 and len(list(plain.answers(GIVENS, 4))) == 1


@pytest.mark.parametrize("clamp_givens", [True, False])
@pytest.mark.parametrize("rule", (CODE, LISTING))
def test_a_step_follows_the_gradient_of_the_boards_energy(rule: str, clamp_givens: bool) -> None:
    model, start = ebt(clamp_givens=clamp_givens), tokens(2, 81, 9)
    embedding = model.prediction_embedding.weight
    settings = ThinkingSettings(num_steps=1, rule=rule)
    (found,) = thoughts(PredictionStep(model.energies(GIVENS), embedding, model.step_size, 1, 1, settings), start)
    logits = start.clone().requires_grad_()
    probabilities = torch.softmax(logits, -1)
    seen = probabilities
    if clamp_givens:
        hot = torch.nn.functional.one_hot((GIVENS - 1).clamp(min=0), 9).double()
        seen = torch.where(BLANK[..., None], probabilities, hot)
    states = model.trunk(model.cells(GIVENS) + seen @ embedding.mT, causal=False)
    energy = model.energy_head(states).sum()
    by = probabilities if rule == "code" else logits
    expected = by - model.step_size * torch.autograd.grad(energy, by)[0]
    torch.testing.assert_close(found.prediction, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.energy.sum(), energy.detach(), rtol=1e-10, atol=1e-10)
