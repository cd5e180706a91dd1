from functools import partial
from typing import Any

import pytest
import torch

from paper_repro.base.configs import instantiate
from paper_repro.models import gpt, nrgpt
from paper_repro.probes.parameter_count import ParameterCount

OWT = {"vocabulary_size": 50304, "block_length": 1024, "num_heads": 12}
CHARACTERS = {"vocabulary_size": 65, "block_length": 256}

ROWS: list[tuple[Any, dict[str, int], int, int]] = [
    (gpt.GPT, {**OWT, "width": 768, "num_layers": 12}, 163_132_032, 124_498_560),
    (gpt.RGPTParallel, {**OWT, "width": 768, "num_steps": 12}, 85_190_784, 46_557_312),
    (nrgpt.NRGPT_H_FF2W, {**OWT, "width": 768, "num_steps": 12}, 90_496_897, 51_863_425),
    (gpt.GPT, {**CHARACTERS, "width": 64, "num_heads": 4, "num_layers": 8}, 423_233, 419_073),
    (gpt.RGPT, {**CHARACTERS, "width": 256, "num_heads": 1, "num_steps": 8}, 888_385, 871_745),
    (nrgpt.NRGPT_H_FF1, {**CHARACTERS, "width": 512, "num_heads": 2, "num_steps": 6}, 2_036_802, 2_003_522),
]


@pytest.mark.parametrize("tie_output", [False, True])
@pytest.mark.parametrize(("model", "sizes", "untied", "tied"), ROWS)
def test_counts_are_the_authors_whether_or_not_the_model_is_tied(
    model: Any, sizes: dict[str, int], untied: int, tied: int, tie_output: bool
) -> None:
    found = ParameterCount(partial(model, **sizes, tie_output=tie_output)).counts()
    frozen = sizes["width"] if issubclass(model, nrgpt.NRGPT) else 0  # the norm's scale
    positions = sizes["block_length"] * sizes["width"]
    assert found == {
        "untied": untied,
        "tied": tied,
        "without_positions": untied - positions,
        "trainable": untied - frozen,
    }


def test_it_measures_from_a_config_and_leaves_the_random_numbers_alone() -> None:
    node = {"_target_": "paper_repro.models.nrgpt.NRGPT_H_FF2W", "_partial_": True, **ROWS[2][1]}
    state = torch.get_rng_state()
    probe = instantiate({"_target_": "paper_repro.probes.parameter_count.ParameterCount", "model": node})
    assert probe.measure(None, None, 0).metrics["paper_parameters_trainable"] == 90_496_129
    assert torch.equal(torch.get_rng_state(), state)
