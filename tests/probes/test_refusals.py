"""Wrong settings of probes, which are refused before anything is trained, and models and data of another kind."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError

SIZES = {"width": 8, "num_heads": 2, "num_layers": 1}
BOARDS = {"_target_": "paper_repro.models.ebt_sudoku.SudokuEBT", "_partial_": True, **SIZES}
PROMPT = {"prompts": ["a"], "seeds": [1]}


@pytest.mark.parametrize(
    ("probe", "given", "word"),
    [
        ("completion.EstimateOrder", {"betas": [0.1]}, "two or more"),
        ("listops_accuracy.ListOpsAccuracy", {"ways": ["accuracy_gredy"]}, "accuracy_gredy"),
        ("parameter_count.ParameterCount", {"model": BOARDS}, "found SudokuEBT"),
        ("text_quality.TextQuality", {**PROMPT, "seeds": [1, 2]}, "a seed for each"),
        ("text_quality.TextQuality", {**PROMPT, "choose": "best"}, "choose must be one of"),
        ("text_quality.TextQuality", {**PROMPT, "perplexity_model": "./nowhere"}, "no config.json there"),
        ("thinking.Thinking", {"sets": ["nowhere"]}, "must be one of"),
        ("thinking.Thinking", {"samples": [2, 4]}, "samples must have 1"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_trained(probe: str, given: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        instantiate({"_target_": f"paper_repro.probes.{probe}", **given})


@pytest.mark.parametrize(
    ("probe", "given", "word"),
    [
        ("completion.Reconstructions", {"free_steps": 5}, "Linear does not relax"),
        ("frame_energies.FrameEnergies", {}, "no energies of frames"),
        ("inner_steps.EnergyTrace", {"num_tokens": 2, "num_steps": 2}, "Linear has no energies"),
        ("inspection.Embeddings", {}, "looks at nGPT and its baseline, found Linear"),
        ("length_extrapolation.LengthExtrapolation", {}, "extends a RotaryLanguageModel"),
        ("listops_accuracy.ListOpsAccuracy", {}, "asks ListOps questions"),
        ("sudoku_accuracy.SudokuAccuracy", {}, "measures Sudoku boards"),
        ("text_quality.TextQuality", PROMPT, "has no tokenizer"),
    ],
)
def test_models_and_data_of_another_kind_are_refused(probe: str, given: dict[str, Any], word: str) -> None:
    own: Any = instantiate({"_target_": f"paper_repro.probes.{probe}", **given})
    with pytest.raises(UsageError, match=word):
        own.measure(SimpleNamespace(model=nn.Linear(1, 1), device="cpu"), SimpleNamespace(evaluation_batches=list), 0)
