"""FLOPs of NRGPT's blocks: every product is counted, and widths of equal parameters are the nearest."""

from pathlib import Path
from typing import Any

import pytest

from paper_repro.cells.tasks import Cell, Outcome
from paper_repro.papers.nrgpt.flops import flops_by_formula
from paper_repro.probes.training_flops import BlockCost, count

BLOCKS = {
    "rgpt": "gpt.RGPT",
    "rgpt_parallel": "gpt.RGPTParallel",
    "ff1": "nrgpt.NRGPT_H_FF1",
    "ff2w": "nrgpt.NRGPT_H_FF2W",
    "ff2": "nrgpt.NRGPT_H_FF2",
}


def block(kind: str, width: int, heads: int, window: int, hidden_factor: int = 4) -> dict[str, Any]:
    sizes = {"width": width, "num_heads": heads, "block_length": window, "hidden_factor": hidden_factor}
    return {"_target_": f"paper_repro.models.{BLOCKS[kind]}", "vocabulary_size": 7, "num_steps": 1, **sizes}


def run(task: Any, *configs: dict[str, Any]) -> list[Outcome]:
    cells = [Cell(str(number), config) for number, config in enumerate(configs)]
    found: list[Outcome] = task.run(cells, Path(), None)
    return found


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize(
    ("width", "heads", "window", "factor"), [(24, 1, 5, 4), (24, 3, 2, 8), (48, 12, 33, 4), (768, 2, 128, 1)]
)
def test_every_product_of_a_block_is_counted(kind: str, width: int, heads: int, window: int, factor: int) -> None:
    """Also those inside a custom autograd function: a hidden product would leave the count below the formula."""
    counts = count(block(kind, width, heads, window, factor), window)
    assert counts["flops"] == flops_by_formula(kind, width, heads, window, factor)
    eta = 0 if kind.startswith("rgpt") else 2 * window * width**2
    assert counts["flops"] == counts["attention"] + counts["feed_forward"] + eta


@pytest.mark.parametrize("heads", [1, 2, 12])
@pytest.mark.parametrize("kind", ["ff1", "ff2w", "ff2"])
def test_the_width_of_equal_parameters_is_the_nearest(kind: str, heads: int) -> None:
    own = block(kind, 96, heads, 8)
    found = run(BlockCost(), {"block": own, "window": 8, "equal_parameters": True})[0].metrics
    wanted = count(block("rgpt", 96, heads, 8), 8)["parameters"]
    assert found["parameters_ratio"] == found["parameters"] / wanted
    assert found["width"] % heads == 0
    for width in (int(found["width"]) - heads, int(found["width"]) + heads):
        other = count({**own, "width": width}, 8)["parameters"]
        assert abs(other - wanted) >= abs(found["parameters"] - wanted)
