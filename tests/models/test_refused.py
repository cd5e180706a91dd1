"""What constructors refuse: values out of range, unknown words, and options that the others leave without effect."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from paper_repro.models.cem import CEMMLP, CEMAttention, GatedMLP, GaussianProcessRegressor, PlainMLP
from paper_repro.models.cet import CET, Phases
from paper_repro.models.ebt import EBT, LatentEBT, LatentTransformer, ThinkingSettings, TransformerPlusPlus
from paper_repro.models.ebt_image import ImageEBT
from paper_repro.models.ebt_sudoku import SudokuEBT, SudokuFeedForward, SudokuRecursive
from paper_repro.models.generation import Settle
from paper_repro.models.gpt import GPT, RGPT
from paper_repro.models.llama import Llama, gated_feed_forward, rotary_attention
from paper_repro.models.ngpt import NGPT
from paper_repro.models.nrgpt import NRGPT_H_FF1

SIZES = {"vocabulary_size": 11, "block_length": 7, "width": 12, "num_heads": 2}
TRUNK: dict[str, Any] = {"width": 8, "num_heads": 2, "num_layers": 1}
GOOD: dict[Callable[..., Any], dict[str, Any]] = {
    CEMMLP: {"width": 6, "hidden": 9},
    PlainMLP: {"width": 6, "hidden": 9},
    CEMAttention: {"width": 12, "num_heads": 3},
    GaussianProcessRegressor: {"block": GatedMLP(64, 8), "width": 64},
    CET: {},
    Phases: {},
    EBT: {**SIZES, "num_layers": 1},
    ThinkingSettings: {},
    TransformerPlusPlus: {**SIZES, "num_layers": 1},
    ImageEBT: {**TRUNK, "image_size": 8, "patch": 4},
    SudokuEBT: TRUNK,
    SudokuRecursive: TRUNK,
    Settle: {"tolerance": 0.1},
    RGPT: {**SIZES, "num_steps": 2},
    Llama: {**SIZES, "num_layers": 1, "hidden": 8, "attention": rotary_attention, "feed_forward": gated_feed_forward},
    NGPT: {**SIZES, "num_layers": 1},
    NRGPT_H_FF1: {**SIZES, "num_steps": 3},
}
LOW_RANK = {"preconditioner": "diagonal_low_rank"}
REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (CEMMLP, {"hidden": 2.5}, "hidden must be a whole number of at least 1, got 2.5"),
    (CEMMLP, {"num_steps": True}, "num_steps must be a whole number of at least 1, got True"),
    (CEMMLP, {"activation": "silo"}, r"activation must be one of silu, gelu, got 'silo' \(did you mean 'silu'"),
    (CEMMLP, {"start": "normed"}, "start='normed' has no effect without norm_context"),
    (CEMMLP, {"rank": 2}, "rank=2 has no effect with preconditioner='none'"),
    (CEMMLP, {"preconditioner_diagonal": 1.0}, "preconditioner_diagonal=1.0 has no effect with preconditioner='none'"),
    (CEMMLP, {"preconditioner": "diagonal", "preconditioner_std": 0.02}, "preconditioner_std=0.02 has no effect"),
    (CEMMLP, {**LOW_RANK, "rank": 2, "preconditioner_std": 0.0}, "preconditioner_std must be a positive finite"),
    (CEMMLP, {**LOW_RANK, "rank": 0}, "rank must be a whole number of at least 1, got 0"),
    (CEMMLP, LOW_RANK, "rank must lie between 0 .* width 6, got 16"),
    (CEMMLP, {"reading_init_scale": "1"}, "reading_init_scale must be a positive finite number, got '1'"),
    (CEMMLP, {"init_std": 0.1, "context_init_scale": 2.0}, "init_std replaces context_init_scale"),
    (PlainMLP, {"activation": "tanh"}, "activation must be one of"),
    (GaussianProcessRegressor, {"width": 32}, "width is 32, but the block was built with width 64"),
    (CEMAttention, {"num_heads": 5}, "num_heads must divide the width 12"),
    (CEMAttention, {**LOW_RANK, "rank": 13}, "between 0 .* and the width 12, got 13"),
    (CEMAttention, {"diagonal": "all"}, "diagonal must be one of none, shared, per_head"),
    (CEMAttention, {"diagonal": "none", "value_diagonal": True}, "no effect with diagonal='none'"),
    (CEMAttention, {"diagonal": "none", "diagonal_init": 1.0}, "diagonal_init has no effect"),
    (CEMAttention, {"temperature": "cold"}, "temperature must be one of head, model"),
    (CEMAttention, {"slopes": "steep"}, "slopes must be one of press, powers, none"),
    (CEMAttention, {"step_size": 0.0}, "step_size must be a positive finite number, got 0.0"),
    (CET, {"stride": 7}, "patches of 20 at stride 7 do not tile images of 120"),
    (CET, {"size": 125}, "do not tile images of 125"),
    (CET, {"patch": 130, "stride": 10}, "the patch must fit"),
    (CET, {"start": "random"}, "start must be one of drive, zeros"),
    (CET, {"precision": "float16"}, "precision must be one of float32, tf32, bfloat16, got 'float16'"),
    (Phases, {"nudged_steps": 1}, "only the decoder would learn: give 2 or more"),
    (Phases, {"beta": 0.0}, "beta must lie between 0 and 1/2, got 0.0"),
    (Phases, {"beta": 0.5}, "no minimum from 2 beta = 1 on"),
    (EBT, {"step_size": 0.0}, "step_size must be a positive finite number"),
    (EBT, {"num_landscapes": 2}, "variant=default has one landscape, got num_landscapes=2: take time_embed, adaln"),
    (ThinkingSettings, {"most_steps": 1}, "most_steps must be at least num_steps=2"),
    (ThinkingSettings, {"rule": "cod"}, "rule must be one of code, listing"),
    (ThinkingSettings, {"noise": -1.0}, "noise must be a finite number"),
    (ThinkingSettings, {"step_size_spread": 0.5}, "step_size_spread must be a finite number of at least 1"),
    (ThinkingSettings, {"truncate": True}, "it needs loss=last"),
    (TransformerPlusPlus, {"num_passes": 0}, "num_passes must be a whole number"),
    (ImageEBT, {"patch": 3}, "do not tile"),
    (ImageEBT, {"width": 6}, "multiple of 4"),
    (SudokuEBT, {"num_heads": 3}, "num_heads must divide the width 8"),
    (SudokuRecursive, {"num_iterations": 0}, "num_iterations must be a whole number of at least 1, got 0"),
    (Settle, {"tolerance": float("inf")}, "tolerance must be a finite number of at least 0"),
    (Settle, {"patience": 0}, "patience must be a whole number"),
    (RGPT, {"hidden_factor": 0}, "hidden_factor must be a whole number"),
    (RGPT, {"block_length": -1}, "block_length must be a whole number"),
    (RGPT, {"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
    (Llama, {"attention": partial(rotary_attention, num_passes=0)}, "num_passes must be a whole number"),
    (Llama, {"attention": partial(CEMAttention, num_steps=0)}, "num_steps must be a whole number"),
    (NGPT, {"width": 6}, r"head width must be even .*got 3 \(RoPE"),
    (NGPT, {"rope": "txtbook"}, "rope must be one of textbook, published, got 'txtbook' .*did you mean 'textbook'"),
    (NGPT, {"alpha_A": {"init": 0}}, "alpha_A: init must be a positive finite number, got 0"),
    (NGPT, {"s_z": {"init": "sqrt(V)"}}, r"s_z: init must be a positive number, sqrt\(d\) or 1/sqrt\(d\), got"),
    (NGPT, {"s_u": {"mode": "vectr"}}, "s_u: mode must be one of vector, scalar, fixed, got 'vectr' .*'vector'"),
    (NGPT, {"s_nu": {"inti": 1}}, "s_nu: .*unexpected keyword argument 'inti'"),
    (NGPT, {"s_qk": None}, "s_qk must be {mode, init, scale}, got None"),
    (NGPT, {"alpha_sign": "both"}, "alpha_sign must be one of absolute, signed"),
    (NGPT, {"update": "slerp"}, "update must be one of lerp, riemannian"),
    (NGPT, {"storage": "float16"}, "storage must be one of float32, bfloat16"),
    (NRGPT_H_FF1, {"mask": "causal"}, "mask must be one of strict, inclusive"),
    (NRGPT_H_FF1, {"beta": "half"}, "beta must be one of one, inverse_root_head_width"),
    (NRGPT_H_FF1, {"norm": "rmsnorm"}, "norm must be one of .* rms_norm"),
    (NRGPT_H_FF1, {"inference_rate": "pos_scalar"}, "inference_rate must be one of .*positive_scalar"),
    (NRGPT_H_FF1, {"inference_rate": "norm_scale"}, "choose norm='layer_norm' or norm='rms_norm'"),
    (NRGPT_H_FF1, {"rate_rank": 3}, "rate_rank=3 has no effect with inference_rate='full'"),
    (NRGPT_H_FF1, {"inference_rate": "psd_skew", "rate_rank": 0}, "rate_rank must be a whole number"),
    (NRGPT_H_FF1, {"inference_rate_schedule": [1.0, 1.0]}, "inference_rate_schedule must be"),
    (NRGPT_H_FF1, {"inference_rate_schedule": "learnt"}, "inference_rate_schedule must be"),
    (NRGPT_H_FF1, {"inference_rate_schedule": [1.0, -1.0, float("nan")]}, "inference_rate_schedule must be"),
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
        for shape in ((1, 6, 6), (1, 5, 7), (5, 6), (1, 0, 6)):
            with pytest.raises(ValueError, match=r"\(B, T, 6\)"):
                read(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"givens must have the shape \(B, 81\), got \(2, 80\)"):
        SudokuFeedForward(**TRUNK)(torch.zeros(2, 80, dtype=torch.long))
    with pytest.raises(ValueError, match=r"shape \(B, 3, 8, 8\)"):
        ImageEBT(8, 4, **TRUNK).patches.cut(torch.zeros(1, 1, 8, 8))
    with pytest.raises(ValueError, match=r"shape \(B, 2, 8, 8\), got \(1, 1, 8, 8\)"):
        CET(2, 8, 4, 2, 6, 2, 3, 5).clamp(torch.zeros(1, 1, 8, 8))
    with pytest.raises(ValueError, match="temperature must be a positive finite number"):
        gpt.generate(ids, 1, temperature=-1.0)
    with pytest.raises(ValueError, match="num_tokens"):
        gpt.generate(ids, 0)
