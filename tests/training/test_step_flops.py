from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.configs import compose
from paper_repro.cells.tasks import Cell
from paper_repro.kernels.preferences import prefer
from paper_repro.training import step_time
from paper_repro.training.build import build_module
from paper_repro.training.counting import ATEN, count_flops, flops_by_operation
from paper_repro.training.step_time import StepFlops, count

WIDTH, HEADS, LAYERS, WINDOW, VOCABULARY = 8, 2, 4, 5, 11
TINY = (
    f"model.width={WIDTH}",
    f"model.num_heads={HEADS}",
    f"model.num_layers={LAYERS}",
    f"data.window={WINDOW}",
    f"model.vocabulary_size={VOCABULARY}",
)
DEFAULT = ("model.variant=default", "model.num_landscapes=1", "module.thinking.num_steps=1")
TRANSFORMER = ("model=ebt/transformer", "ways={plain: {}}")


def tiny(*overrides: str) -> dict[str, Any]:
    return compose("ebt/sizes", [*overrides, *TINY], seed=0)


def run(config: dict[str, Any]) -> dict[str, float]:
    (outcome,) = StepFlops().run([Cell("cell", config)], Path(), None)  # type: ignore[arg-type]
    return outcome.metrics


@pytest.mark.slow
def test_a_transformer_s_step_is_the_formula() -> None:
    """6 for each weight and token; attention 4 T^2 D forward and twice that backward; the vocabulary 6 V D a token."""
    found = run(tiny(*TRANSFORMER))
    trunk, attention = 6 * 7 * LAYERS * WIDTH**2 * WINDOW, 3 * 4 * LAYERS * WINDOW**2 * WIDTH
    assert found["flops_plain"] == trunk + attention + 6 * VOCABULARY * WIDTH * WINDOW
    assert found["ratio_plain"] == found["weights_plain"] == 1
    assert count(tiny(*TRANSFORMER)).weights == trunk + 6 * WIDTH * WINDOW


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [DEFAULT, ()], ids=["default", "time_embed"])
@pytest.mark.parametrize("streams", ["split", "concatenated"])
def test_further_layers_cost_what_the_second_does_at_any_vocabulary(overrides: tuple[str, ...], streams: str) -> None:
    config = tiny(*overrides)
    config = {**config, "model": {**config["model"], "streams": streams}}
    with torch.device("meta"):
        module = build_module(config)
    ids = torch.zeros(1, WINDOW, dtype=torch.long, device="meta")
    with prefer("reference"):
        assert count(config).whole == count_flops(lambda: module.counted_step((ids, ids)))


@pytest.mark.slow
def test_a_step_of_both_streams_takes_twelve_for_each_weight_on_both_halves() -> None:
    """12 N a row on T observed and T predicted rows is 4 times 6 N on T rows; the head of D numbers comes on top."""
    found = run(tiny(*DEFAULT))
    assert found["weights_concatenated"] == pytest.approx(4, rel=0.02)
    twice = run(tiny("model.variant=default", "model.num_landscapes=1"))
    assert twice["weights_concatenated"] == pytest.approx(8, rel=0.02)
    # Split: 12 on the predicted rows for each step, 6 on the observed ones but for the last layer, once.
    last = 5 / 7 / LAYERS
    assert found["weights_split"] == pytest.approx(3 - last, rel=0.02)
    assert twice["weights_split"] == pytest.approx(5 - last, rel=0.02)
    assert twice["flops_split"] < twice["flops_concatenated"]


def test_parameters_are_counted_with_and_without_tables_and_step_size() -> None:
    found = step_time.parameters(tiny(*DEFAULT))
    trunk = 7 * LAYERS * WIDTH**2 + (2 * LAYERS + 1) * WIDTH + WIDTH
    assert found == {
        "parameters": trunk,
        "parameters_total": trunk + 2 * VOCABULARY * WIDTH + 1,
        "parameters_rebuilt": 2040 + 1 - 2 * VOCABULARY * WIDTH - 1,
    }


def test_flops_are_told_apart_by_operation() -> None:
    a, b = (torch.empty(2, 3, 3, device="meta") for _ in range(2))
    found = flops_by_operation(lambda: (a @ b, a[0] @ b[0]))
    assert found == {ATEN.bmm: 2 * 2 * 27, ATEN.mm: 2 * 27}
