"""FLOPs of a training step, counted on trained modules."""

from typing import Any

import pytest
import torch

from paper_repro.base import configs
from paper_repro.cells.tasks import Cell
from paper_repro.probes.training_flops import TrainingFlops
from paper_repro.training.build import build

ROWS, TOKENS, WORDS, WIDTH, LAYERS = 2, 8, 32, 16, 2
SIZES = (
    f"model.vocabulary_size={WORDS}",
    f"model.width={WIDTH}",
    "model.num_heads=2",
    f"model.num_layers={LAYERS}",
    f"data.window={TOKENS}",
    f"data.batch_size={ROWS}",
)


class Batches:
    """Stands for data: a batch, and nothing else."""

    def example_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.zeros(ROWS, TOKENS, dtype=torch.long)
        return ids, ids


def measured(model: str, *overrides: str) -> dict[str, float]:
    config = configs.compose("ebt/language", [f"model=ebt/{model}", *SIZES, *overrides], 0)
    with torch.no_grad():  # as probes are run
        module = build(Cell("made", config)).module
        data: Any = Batches()
        return TrainingFlops().measure(module, data, 0).metrics


def test_a_transformers_step_has_three_products_of_each_matrix() -> None:
    found = measured("transformer")
    parameters = 7 * LAYERS * WIDTH**2 + (2 * LAYERS + 1) * WIDTH
    places = ROWS * TOKENS
    assert found["trunk_parameters"] == parameters
    # Matrices of the trunk and the output three times, scores and values of two heads: forward and twice backward.
    matrices = 7 * LAYERS * WIDTH**2 + WORDS * WIDTH
    attention = 2 * LAYERS * TOKENS * WIDTH
    assert found["step_flops"] == pytest.approx(6 * places * (matrices + attention), rel=0.02)


@pytest.mark.parametrize(("model", "landscapes"), [("s1", 2), ("s2", 1)])
def test_ebts_trunk_has_the_energys_row_and_the_embeddings_of_steps(model: str, landscapes: int) -> None:
    found, baseline = measured(model), measured("transformer")
    assert found["trunk_parameters"] == baseline["trunk_parameters"] + (1 + landscapes) * WIDTH
    assert found["step_flops"] > 2 * baseline["step_flops"]


def test_another_step_of_a_prediction_costs_more() -> None:
    two, three = (measured("s1", f"module.thinking.num_steps={steps}")["step_flops"] for steps in (2, 3))
    assert 1.2 < three / two < 1.6
