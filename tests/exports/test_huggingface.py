"""Exports to Hugging Face's format, read back by transformers.

Logits are held to 1e-5 of the largest of them in float32: both sides multiply the same numbers in another order (fused
products, another layout of heads), and a wide GPT-2 and Llama's angles are rounded once more; measured at most 2e-6.
nGPT's are computed by the same code.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import paper_repro
from paper_repro.base.errors import UsageError
from paper_repro.datamodules.tokenizers import BytePairTokenizer, CharacterTokenizer
from paper_repro.exports import huggingface
from paper_repro.exports.weights import export
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
}
GPTS: dict[str, dict[str, Any]] = {
    "two layers": {"vocabulary_size": 40, "width": 16, "num_heads": 2, "num_layers": 2},
    "one head, odd sizes": {"vocabulary_size": 41, "width": 7, "num_heads": 1, "num_layers": 1, "hidden_factor": 3},
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


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where transformers copies the code that it is told to trust, instead of the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", folder)
        patch.setattr(sys, "path", [folder, *sys.path])
        yield


def write(model: nn.Module, folder: Path, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    tensors, config, code = huggingface.converted(model, settings or {})
    (folder / "config.json").write_bytes(huggingface.as_json(config))
    save_file({name: one.detach().contiguous() for name, one in tensors.items()}, folder / "model.safetensors")
    for name, content in code.items():
        (folder / name).write_bytes(content)
    return config


def loaded(model: nn.Module, folder: Path, settings: dict[str, Any] | None = None) -> Any:
    config = write(model, folder, settings)
    trust = {"trust_remote_code": True} if "auto_map" in config else {}
    found, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **trust)
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


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sizes", GPTS.values(), ids=GPTS)
def test_gpt_is_gpt_2_with_further_dimensions_for_an_output_bias(
    sizes: dict[str, Any], tied: bool, biased: bool, tmp_path: Path
) -> None:
    model = trained(GPT(block_length=CONTEXT, tie_output=tied, **sizes))
    if not biased:
        nn.init.zeros_(model.output.bias)
    found = loaded(model, tmp_path)
    assert found.config.n_embd == model.width + biased * sizes["num_heads"]
    assert biased or (found.lm_head.weight is found.transformer.wte.weight) == tied
    assert_same(model, found)


FIXED, ONE = {"mode": "fixed", "init": 0.3}, {"mode": "scalar", "init": 0.2, "scale": "1/sqrt(d)"}
NGPTS: dict[str, dict[str, Any]] = {
    "as published": {"vocabulary_size": 40, "width": 16, "num_heads": 2, "num_layers": 2},
    "other scales": {
        "vocabulary_size": 41, "width": 12, "num_heads": 3, "num_layers": 1, "hidden_factor": 3,
        "alpha_A": FIXED, "s_qk": FIXED, "s_z": FIXED, "alpha_M": ONE, "s_u": None,
    },
    "other forms": {
        "vocabulary_size": 17, "width": 8, "num_heads": 1, "num_layers": 3, "alpha_sign": "signed",
        "update": "riemannian", "qk_norm": False, "rope": "published",
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", NGPTS.values(), ids=NGPTS)
def test_ngpt_takes_its_code_along(settings: dict[str, Any], tmp_path: Path) -> None:
    settings = {"block_length": CONTEXT, **settings}
    model = trained(NGPT(**settings))
    found = loaded(model, tmp_path, {"_target_": "paper_repro.models.ngpt.NGPT", **settings})
    assert_same(model, found)
    ids = ids_for(model)
    assert torch.allclose(found(ids, labels=ids).loss, model.cross_entropy(ids[:, :-1], ids[:, 1:]))
    long = found.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
    assert torch.equal(long, model.generate(ids, 4, temperature=0.0))  # of the last tokens that it sees at once
    with pytest.raises(ValueError, match="pad on the right"):
        found(ids, attention_mask=torch.arange(CONTEXT).expand_as(ids) > 2)


def test_what_transformers_saves_of_an_ngpt_it_opens_again(tmp_path: Path) -> None:
    settings = {"block_length": CONTEXT, **NGPTS["as published"], "s_qk": FIXED}
    model = trained(NGPT(**settings))
    loaded(model, tmp_path, settings).save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True)
    assert_same(model, again.eval())


OTHERS = """
import sys, importlib.abc
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "paper_repro":
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import torch, transformers
folder = sys.argv[1]
model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
ids = tokenizer("The function returns", return_tensors="pt")
print(model(ids["input_ids"]).logits.double().abs().sum().item())
print(tokenizer.decode(model.generate(**ids, max_new_tokens=20, do_sample=False)[0]))
"""


@pytest.mark.slow
def test_an_exported_ngpt_needs_none_of_our_packages(tmp_path: Path) -> None:
    export("ngpt", tmp_path / "out", "huggingface")
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, "-c", OTHERS, str(tmp_path / "out")]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    total, text = done.stdout.split("\n", 1)
    model: Any = paper_repro.load("ngpt")
    ids = torch.tensor([model.tokenizer.encode("The function returns")])
    with torch.no_grad():
        assert float(total) == pytest.approx(float(model(ids).double().abs().sum()), rel=TOLERANCE)
    own = model.generate(ids, 20, temperature=0.0, stop=model.tokenizer.end_of_text)
    assert text == model.tokenizer.decode(own[0].tolist()) + "\n"


TEXTS = [
    "  Two  blanks,\ttab\r\n\n\uff21\u00c9e\u0301 \u65e5\u672c \U0001f642\x00\x7f ",
    "The function returns\n\n  a value.",
    "Does <|endoftext|> end it?",
    "",
]


def tokenizer_in(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


@pytest.mark.parametrize("name", ["gpt", "llama", "ngpt"])
def test_a_text_has_the_same_ids_and_comes_back(name: str, tmp_path: Path) -> None:
    export(name, tmp_path / "out", "huggingface")
    own: Any = paper_repro.load(name).tokenizer
    found = tokenizer_in(tmp_path / "out")
    assert isinstance(own, BytePairTokenizer) and len(found) == own.vocabulary_size
    assert found.eos_token_id == own.end_of_text
    for text in TEXTS:
        ids = own.encode(text)
        assert found(text)["input_ids"] == ids and found.decode(ids) == text


def test_so_it_is_with_characters(tmp_path: Path) -> None:
    own = CharacterTokenizer("".join(TEXTS))
    model = trained(GPT(own.vocabulary_size, CONTEXT, 8, 2, 1))
    write(model, tmp_path)
    for name, content in huggingface.vocabulary(own, CONTEXT).items():
        (tmp_path / name).write_bytes(content)
    found = tokenizer_in(tmp_path)
    assert len(found) == own.vocabulary_size and found.model_max_length == CONTEXT
    for text in TEXTS:
        assert found(text)["input_ids"] == own.encode(text) and found.decode(own.encode(text)) == text
    with pytest.raises(Exception, match="Missing"):
        found("Z")


SIZES = {"vocabulary_size": 40, "block_length": CONTEXT, "width": 16, "num_heads": 2}
REFUSED: dict[str, tuple[Any, str]] = {
    "rgpt": (lambda: RGPT(**SIZES, num_steps=2), "RGPT is no architecture of transformers"),
    "qk norm": (lambda: BaselineGPT(**SIZES, num_layers=1, qk_norm=True), "normalises queries and keys"),
    "cem": (lambda: llama(**LLAMAS["two layers"], feed_forward=CEMMLP), "the feed-forward part CEMMLP"),
    "passes": (
        lambda: llama(
            **LLAMAS["two layers"],
            attention=lambda width, num_heads: rotary_attention(width, num_heads, num_passes=2),
        ),
        "applies its parts 2 times",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_class_computes_is_refused_and_what_can_be_exported_is_named(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(UsageError, match=message) as caught:
        huggingface.converted(make(), {})
    assert huggingface.EXPORTED in str(caught.value) and "\n" not in str(caught.value)
