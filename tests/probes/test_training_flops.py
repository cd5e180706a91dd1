"""Counted FLOPs: of a training step on trained modules, and of NRGPT's blocks."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paper_repro.base import configs
from paper_repro.base.configs import instantiate
from paper_repro.cells.tasks import Cell
from paper_repro.models import gpt, nrgpt
from paper_repro.papers.nrgpt.flops import flops_by_formula
from paper_repro.probes.parameter_count import ParameterCount
from paper_repro.probes.training_flops import BlockCost, TrainingFlops, count
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


def measured(model: str, *overrides: str) -> dict[str, float]:
    config = configs.compose("ebt/language", [f"model=ebt/{model}", *SIZES, *overrides], 0)
    with torch.no_grad():  # as probes are run
        module = build(Cell("made", config)).module
        data: Any = SimpleNamespace(example_batch=lambda: (torch.zeros(ROWS, TOKENS, dtype=torch.long),) * 2)
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
    cell = Cell("cell", {"block": own, "window": 8, "equal_parameters": True})
    found = BlockCost().run([cell], Path(), None)[0].metrics  # type: ignore[arg-type]
    wanted = count(block("rgpt", 96, heads, 8), 8)["parameters"]
    assert found["parameters_ratio"] == found["parameters"] / wanted
    assert found["width"] % heads == 0
    for width in (int(found["width"]) - heads, int(found["width"]) + heads):
        other = count({**own, "width": width}, 8)["parameters"]
        assert abs(other - wanted) >= abs(found["parameters"] - wanted)


# Parameters at the paper's size.


OWT = {"vocabulary_size": 50304, "block_length": 1024, "num_heads": 12}
CHARACTERS = {"vocabulary_size": 65, "block_length": 256}

COUNTED: list[tuple[Any, dict[str, int], int, int]] = [
    (gpt.GPT, {**OWT, "width": 768, "num_layers": 12}, 163_132_032, 124_498_560),
    (gpt.RGPTParallel, {**OWT, "width": 768, "num_steps": 12}, 85_190_784, 46_557_312),
    (nrgpt.NRGPT_H_FF2W, {**OWT, "width": 768, "num_steps": 12}, 90_496_897, 51_863_425),
    (gpt.GPT, {**CHARACTERS, "width": 64, "num_heads": 4, "num_layers": 8}, 423_233, 419_073),
    (gpt.RGPT, {**CHARACTERS, "width": 256, "num_heads": 1, "num_steps": 8}, 888_385, 871_745),
    (nrgpt.NRGPT_H_FF1, {**CHARACTERS, "width": 512, "num_heads": 2, "num_steps": 6}, 2_036_802, 2_003_522),
]


@pytest.mark.parametrize("tie_output", [False, True])
@pytest.mark.parametrize(("model", "sizes", "untied", "tied"), COUNTED)
def test_counts_are_the_authors_whether_or_not_the_model_is_tied(model, sizes, untied, tied, tie_output):
    found = ParameterCount(partial(model, **sizes, tie_output=tie_output)).counts()
    without_positions = untied - sizes["block_length"] * sizes["width"]
    assert found == {"untied": untied, "tied": tied, "without_positions": without_positions}


def test_it_measures_from_a_config_and_leaves_the_random_numbers_alone() -> None:
    node = {"_target_": "paper_repro.models.nrgpt.NRGPT_H_FF2W", "_partial_": True, **COUNTED[2][1]}
    state = torch.get_rng_state()
    probe = instantiate({"_target_": "paper_repro.probes.parameter_count.ParameterCount", "model": node})
    assert probe.measure(None, None, 0).metrics["paper_parameters_untied"] == 90_496_897
    assert torch.equal(torch.get_rng_state(), state)
