"""What constructors refuse: values out of range, unknown words, and options that the others leave without effect."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paper_repro.models.cem import CEMMLP, CEMAttention, GatedMLP, GaussianProcessRegressor
from paper_repro.models.cet import CET, Phases
from paper_repro.models.ebt import EBT, LatentEBT, LatentTransformer, ThinkingSettings
from paper_repro.models.ebt_image import ImageEBT
from paper_repro.models.ebt_sudoku import SudokuFeedForward
from paper_repro.models.gpt import GPT, RGPT
from paper_repro.models.ngpt import NGPT
from paper_repro.models.nrgpt import NRGPT_H_FF1

SIZES = {"vocabulary_size": 11, "block_length": 7, "width": 12, "num_heads": 2}
TRUNK: dict[str, Any] = {"width": 8, "num_heads": 2, "num_layers": 1}
GOOD: dict[Callable[..., Any], dict[str, Any]] = {
    CEMMLP: {"width": 6, "hidden": 9},
    CEMAttention: {"width": 12, "num_heads": 3},
    GaussianProcessRegressor: {"block": GatedMLP(64, 8), "width": 64},
    CET: {},
    Phases: {},
    EBT: {**SIZES, "num_layers": 1},
    ThinkingSettings: {},
    ImageEBT: {**TRUNK, "image_size": 8, "patch": 4},
    RGPT: {**SIZES, "num_steps": 2},
    NGPT: {**SIZES, "num_layers": 1},
    NRGPT_H_FF1: {**SIZES, "num_steps": 3},
}
LOW_RANK = {"preconditioner": "diagonal_low_rank"}
REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (CEMMLP, {"activation": "silo"}, r"activation must be one of silu, gelu, got 'silo' \(did you mean 'silu'"),
    (CEMMLP, {"rank": 2}, "rank=2 has no effect with preconditioner='none'"),
    (CEMMLP, LOW_RANK, "rank must lie between 0 .* width 6, got 16"),
    (GaussianProcessRegressor, {"width": 32}, "width is 32, but the block was built with width 64"),
    (CEMAttention, {"num_heads": 5}, "num_heads must divide the width 12"),
    (CET, {"stride": 7}, "patches of 20 at stride 7 do not tile images of 120"),
    (Phases, {"nudged_steps": 1}, "only the decoder would learn: give 2 or more"),
    (EBT, {"step_size": 0.0}, "step_size must be a positive finite number"),
    (EBT, {"num_landscapes": 2}, "variant=default has one landscape, got num_landscapes=2: take time_embed, adaln"),
    (ThinkingSettings, {"truncate": True}, "it needs loss=last"),
    (ImageEBT, {"patch": 3}, "do not tile"),
    (RGPT, {"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
    (NGPT, {"width": 6}, r"head width must be even .*got 3 \(RoPE"),
    (NGPT, {"s_z": {"init": "sqrt(V)"}}, r"s_z: init must be a positive number, sqrt\(d\) or 1/sqrt\(d\), got"),
    (NGPT, {"s_nu": {"inti": 1}}, "s_nu: .*unexpected keyword argument 'inti'"),
    (NRGPT_H_FF1, {"inference_rate": "norm_scale"}, "choose norm='layer_norm' or norm='rms_norm'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "message"), REFUSED)
def test_a_constructor_refuses(make: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        make(**{**GOOD[make], **options})


def test_inputs_of_another_shape_are_refused() -> None:
    ids, gpt = torch.zeros(1, 1, dtype=torch.long), GPT(**SIZES, num_layers=1)
    frames: dict[str, Any] = {**TRUNK, "state_size": 6, "block_length": 5}
    for model in (gpt, EBT(**SIZES, num_layers=1).embed):
        with pytest.raises(ValueError, match=r"1 <= T <= 7 \(block_length\), got \(1, 8\): crop"):
            model(ids.expand(1, 8))
        with pytest.raises(ValueError, match="between 11 and 11, the model's vocabulary_size is 11: encode the text"):
            model(ids + 11)
    for read in (LatentEBT(**frames).energies, LatentTransformer(**frames)):
        with pytest.raises(ValueError, match=r"\(B, T, 6\)"):
            read(torch.zeros(1, 5, 7))
    with pytest.raises(ValueError, match=r"givens must have the shape \(B, 81\), got \(2, 80\)"):
        SudokuFeedForward(**TRUNK)(torch.zeros(2, 80, dtype=torch.long))
    with pytest.raises(ValueError, match=r"shape \(B, 3, 8, 8\)"):
        ImageEBT(8, 4, **TRUNK).patches.cut(torch.zeros(1, 1, 8, 8))
    with pytest.raises(ValueError, match=r"shape \(B, 2, 8, 8\), got \(1, 1, 8, 8\)"):
        CET(2, 8, 4, 2, 6, 2, 3, 5).clamp(torch.zeros(1, 1, 8, 8))
