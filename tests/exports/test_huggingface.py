"""Exports to Hugging Face's format, read back by transformers.

Logits are held to 1e-5 of the largest of them in float32: both sides multiply the same numbers in another order (fused
products, another layout of heads), and a wide GPT-2 and Llama's angles are rounded once more; measured at most 2e-6.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from paper_repro.base.errors import UsageError
from paper_repro.exports import huggingface
from paper_repro.models.cem import CEMMLP
from paper_repro.models.gpt import GPT, RGPT
from paper_repro.models.llama import Llama, gated_feed_forward, rotary_attention
from paper_repro.models.ngpt import NGPT, BaselineGPT

transformers = pytest.importorskip("transformers")
TOLERANCE = 1e-5
CONTEXT = 24

LLAMAS: dict[str, dict[str, Any]] = {
    "two layers": {"vocabulary_size": 40, "width": 16, "num_heads": 2, "num_layers": 2, "hidden": 24},
    "one head, odd sizes": {"vocabulary_size": 41, "width": 6, "num_heads": 1, "num_layers": 1, "hidden": 7},
    "heads of two, three layers": {"vocabulary_size": 17, "width": 10, "num_heads": 5, "num_layers": 3, "hidden": 33},
}
GPTS: dict[str, dict[str, Any]] = {
    "two layers": {"vocabulary_size": 40, "width": 16, "num_heads": 2, "num_layers": 2},
    "one head, odd sizes": {"vocabulary_size": 41, "width": 7, "num_heads": 1, "num_layers": 1, "hidden_factor": 3},
    "heads of three, three layers": {"vocabulary_size": 5, "width": 15, "num_heads": 5, "num_layers": 3},
}


def trained(model: Any) -> Any:
    """The model as if it were trained: no parameter at its start, none near zero."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def llama(**sizes: Any) -> Llama:
    parts = {"attention": rotary_attention, "feed_forward": gated_feed_forward}
    return trained(Llama(block_length=CONTEXT, **{**parts, **sizes}))


def loaded(model: nn.Module, folder: Path) -> Any:
    tensors, config = huggingface.converted(model)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: one.detach().contiguous() for name, one in tensors.items()}, folder / "model.safetensors")
    found, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert type(found).__name__ == config["architectures"][0]
    return found.eval()


def ids_for(model: Any) -> Tensor:
    return torch.randint(model.vocabulary_size, (3, CONTEXT), generator=torch.Generator().manual_seed(1))


def assert_same(model: Any, other: Any) -> None:
    ids = ids_for(model)
    with torch.no_grad():
        own, theirs = model(ids), other(ids).logits
    assert (own - theirs).abs().max() <= TOLERANCE * own.abs().max()
    prompt = ids[:, :5]
    seen = torch.ones_like(prompt)  # else transformers looks for padding
    continued = other.generate(prompt, attention_mask=seen, max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(prompt, 8, temperature=0.0), continued)


@pytest.mark.parametrize("sizes", LLAMAS.values(), ids=LLAMAS)
def test_llama_is_llama(sizes: dict[str, Any], tmp_path: Path) -> None:
    model = llama(**sizes)
    assert_same(model, loaded(model, tmp_path))


def test_the_gpt_that_ngpt_is_held_against_is_llama(tmp_path: Path) -> None:
    model = trained(BaselineGPT(50, CONTEXT, 12, 3, 2))
    assert_same(model, loaded(model, tmp_path))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sizes", GPTS.values(), ids=GPTS)
def test_gpt_is_gpt_2_with_further_dimensions_for_its_output_bias(
    sizes: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    model = trained(GPT(block_length=CONTEXT, tie_output=tied, **sizes))
    assert bool(model.output.bias.abs().max() > 0.1)
    found = loaded(model, tmp_path)
    assert found.config.n_embd == model.width + sizes["num_heads"]
    assert_same(model, found)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sizes", GPTS.values(), ids=GPTS)
def test_without_output_bias_it_has_the_same_size_and_may_be_tied(
    sizes: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    model = trained(GPT(block_length=CONTEXT, tie_output=tied, **sizes))
    nn.init.zeros_(model.output.bias)
    found = loaded(model, tmp_path)
    assert found.config.n_embd == model.width
    assert (found.lm_head.weight is found.transformer.wte.weight) == tied
    assert_same(model, found)


def test_dropout_is_kept_for_those_who_train_on(tmp_path: Path) -> None:
    model = GPT(40, CONTEXT, 16, 2, 1, dropout=0.25)
    config = loaded(model, tmp_path).config
    assert (config.attn_pdrop, config.resid_pdrop, config.embd_pdrop) == (0.25, 0.25, 0.0)


SIZES = {"vocabulary_size": 40, "block_length": CONTEXT, "width": 16, "num_heads": 2}
REFUSED: dict[str, tuple[Any, str]] = {
    "ngpt": (lambda: NGPT(**SIZES, num_layers=1), "NGPT is no architecture of transformers"),
    "rgpt": (lambda: RGPT(**SIZES, num_steps=2), "RGPT is no architecture of transformers"),
    "published rope": (lambda: BaselineGPT(**SIZES, num_layers=1, rope="published"), "rope=published, which is no"),
    "qk norm": (lambda: BaselineGPT(**SIZES, num_layers=1, qk_norm=True), "normalises queries and keys"),
    "bfloat16": (lambda: BaselineGPT(**SIZES, num_layers=1, storage="bfloat16"), "computes in bfloat16 and float32"),
    "cem": (lambda: llama(**LLAMAS["two layers"], feed_forward=CEMMLP), "the feed-forward part CEMMLP"),
    "passes": (
        lambda: llama(
            **LLAMAS["two layers"],
            attention=lambda width, num_heads: rotary_attention(width, num_heads, num_passes=2),
        ),
        "applies its parts 2 times",
    ),
    "no language model": (lambda: nn.Linear(2, 2), "Linear is no architecture of transformers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_class_computes_is_refused_and_what_can_be_exported_is_named(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(UsageError, match=message) as caught:
        huggingface.converted(make())
    text = str(caught.value)
    assert text.startswith("--format huggingface: ") and "\n" not in text
    assert huggingface.EXPORTED in text and "--format paper-repro takes every model" in text
