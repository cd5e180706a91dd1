"""Numbers of parameters, those of the papers among them; more are in tests/probes/test_training_flops.py."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from paper_repro.models.cem import CEMMLP, CEMAttention
from paper_repro.models.ebt_image import DiT, ImageEBT
from paper_repro.models.gpt import RGPTParallel
from paper_repro.models.llama import Llama, gated_feed_forward, rotary_attention
from paper_repro.models.nrgpt import NRGPT_H_FF1, NRGPT_H_FF2W
from paper_repro.training.counting import num_parameters

OWT = {"vocabulary_size": 50304, "block_length": 1024, "num_heads": 12}
SHAKESPEARE = {"vocabulary_size": 65, "block_length": 256, "num_heads": 1}
LISTOPS = {"vocabulary_size": 20, "block_length": 128, "num_heads": 1, "num_steps": 5}
DECODERS: list[tuple[Callable[..., torch.nn.Module], dict[str, Any], int]] = [
    (RGPTParallel, {**OWT, "width": 1740, "num_steps": 6}, 213_242_064),
    (RGPTParallel, {**LISTOPS, "width": 40}, 26_420),
    # Untied totals hold the frozen scale, D numbers that are not trained.
    (NRGPT_H_FF2W, {**OWT, "width": 1536, "num_steps": 12, "tie_output": True}, 128_449_153),
    (NRGPT_H_FF1, {**SHAKESPEARE, "width": 512, "num_heads": 2, "num_steps": 8, "hidden_factor": 8}, 3_087_426),
    (NRGPT_H_FF1, {**LISTOPS, "width": 40}, 16_661),
    (NRGPT_H_FF2W, {**LISTOPS, "width": 40}, 23_101),
]  # fmt: skip
LLAMAS = {
    "86M": (672, 8, 8, 1792),
    "108M": (672, 12, 12, 1792),
    "134M": (768, 12, 12, 2048),
    "162M": (864, 12, 12, 2304),
}
"""D, K, L, m of CEM's table 1; the text's "number of layers" and "of heads" are equal in each."""
TIED_ATTENTION = partial(CEMAttention, diagonal="none", slopes="none")
TIED_MLP = partial(CEMMLP, norm_context=True, norm_inside=True)
FULL_ATTENTION = partial(CEMAttention, preconditioner="diagonal_low_rank")
FULL_MLP = partial(TIED_MLP, preconditioner="diagonal_low_rank")


def count(make: Callable[[], torch.nn.Module]) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make().parameters())


@pytest.mark.parametrize(("make", "options", "number"), DECODERS)
def test_parameters(make: Callable[..., torch.nn.Module], options: dict[str, Any], number: int) -> None:
    assert count(lambda: make(**options)) == number


@pytest.mark.parametrize(
    ("parts", "millions"),
    [
        ((rotary_attention, gated_feed_forward), (86.37, 108.05, 134.11, 162.81)),
        ((TIED_ATTENTION, gated_feed_forward), (79.15, 97.21, 119.95, 144.90)),
        ((rotary_attention, TIED_MLP), (76.74, 93.60, 115.23, 138.93)),
        ((TIED_ATTENTION, TIED_MLP), (69.51, 82.76, 101.08, 121.01)),
        # One norm weight for context and inner norm; with two of their own it would be 2 D a layer more: 70.09 ...
        ((FULL_ATTENTION, FULL_MLP), (70.08, 83.91, 102.38, 122.48)),
    ],
    ids=["Llama", "attention", "MLP", "both", "both with all extras"],
)
def test_parameters_of_the_llamas_of_table_1(parts: tuple[Any, Any], millions: tuple[float, ...]) -> None:
    found = [count(partial(Llama, 32000, 2048, *sizes, *parts)) for sizes in LLAMAS.values()]
    assert tuple(round(number / 1e6, 2) for number in found) == millions


@pytest.mark.parametrize(("kind", "millions"), [(ImageEBT, 685.9), (DiT, 691.0)])
def test_parameters_of_the_image_models(kind: type[ImageEBT | DiT], millions: float) -> None:
    with torch.device("meta"):
        model = kind(image_size=128, patch=16, width=1536, num_heads=16, num_layers=24)
    # The paper's code counts the fixed positions of the patches, too.
    assert round((num_parameters(model) + model.patches.positions.numel()) / 1e6, 1) == millions
