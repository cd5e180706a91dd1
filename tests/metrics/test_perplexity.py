import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from paper_repro.base.errors import UsageError
from paper_repro.metrics import perplexity
from paper_repro.metrics.grammar import UnavailableError
from paper_repro.metrics.perplexity import TextPerplexity, find_model
from paper_repro.tests.support import tiny_gpt2
from paper_repro.tests.support.tiny_gpt2 import HEADS, POSITIONS, WIDTH


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gpt2.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv(perplexity.DATA_VARIABLE, raising=False)


def by_hand(folder: Path, text: str) -> float:
    """GPT-2's equations in float64 on the saved weights: pre-norm layers, tanh GELU, tied output."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    ids = torch.tensor([vocabulary["Ġ" if letter == " " else letter] for letter in text])
    weights = {
        name.removeprefix("transformer."): w.double() for name, w in load_file(folder / "model.safetensors").items()
    }
    norm = lambda x, name: functional.layer_norm(x, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"])  # noqa: E731
    map_ = lambda x, name: x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]  # noqa: E731
    x = weights["wte.weight"][ids] + weights["wpe.weight"][: len(ids)]
    future = torch.ones(len(ids), len(ids)).triu(1).bool()
    for layer in ("h.0", "h.1"):
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(0, 1)
            for part in map_(norm(x, f"{layer}.ln_1"), f"{layer}.attn.c_attn").chunk(3, -1)
        )
        scores = (query @ key.mT / math.sqrt(WIDTH / HEADS)).masked_fill(future, -math.inf)
        x = x + map_((scores.softmax(-1) @ value).transpose(0, 1).flatten(1), f"{layer}.attn.c_proj")
        up = map_(norm(x, f"{layer}.ln_2"), f"{layer}.mlp.c_fc")
        x = x + map_(functional.gelu(up, approximate="tanh"), f"{layer}.mlp.c_proj")
    log_probabilities = (norm(x, "ln_f") @ weights["wte.weight"].T).log_softmax(-1)
    return math.exp(-log_probabilities[torch.arange(len(ids) - 1), ids[1:]].mean())


def test_perplexity_by_hand(folder: Path) -> None:
    scorer = TextPerplexity(folder)
    for text in ("What light through yonder", "hi"):
        # float32 against float64: rounding of logits of size ten, 1e-5, then exponentiated
        assert scorer(text) == pytest.approx(by_hand(folder, text), rel=1e-4)
    assert by_hand(folder, "hi") != pytest.approx(by_hand(folder, "What light through yonder"), rel=0.1)


def test_text_is_cut_to_what_the_model_sees(folder: Path) -> None:
    scorer, text = TextPerplexity(folder), "What light through yonder window breaks"
    assert len(text) > POSITIONS == scorer.most_tokens
    assert scorer(text) == scorer(text[:POSITIONS]) == scorer(text + " again") != scorer(text[: POSITIONS - 1])


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("h", 1)])
def test_texts_without_a_predicted_token_are_refused(folder: Path, text: str, tokens: int) -> None:
    with pytest.raises(ValueError, match=rf"perplexity .* of a text of {tokens} tokens, expected at least 2"):
        TextPerplexity(folder)(text)


def test_a_name_is_found_in_the_data_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(perplexity.DATA_VARIABLE, str(folder.parent))
    assert find_model("tiny") == folder
    assert TextPerplexity("tiny")("hi there") == TextPerplexity(folder)("hi there")


def test_absent_model_is_unavailable_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "no-such-model").mkdir()
    (tmp_path / "no-such-model" / "tokenizer.json").write_text("{}")  # a tokenizer alone is no model
    monkeypatch.setenv(perplexity.DATA_VARIABLE, str(tmp_path))
    assert find_model("no-such-model") is None
    with pytest.raises(UnavailableError, match=r"^needs no-such-model: `hf download no-such-model --local-dir "):
        TextPerplexity("no-such-model")


def test_another_model_does_not_pass_for_gpt2(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "gpt2")
    monkeypatch.setenv(perplexity.DATA_VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match=r"gpt2: .*'n_layer': 2.*expected GPT-2 small.*give another model by its path"):
        TextPerplexity("gpt2")


def test_absent_and_truncated_weights(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UsageError, match=rf"{weights}: 1000 bytes, truncated or damaged .*: delete it; `hf download"):
        TextPerplexity(copy)
    weights.unlink()
    with pytest.raises(UsageError, match=rf"{copy}: no weights there, expected \*\.safetensors or .*hf download"):
        TextPerplexity(copy)


def test_weights_that_lack_a_tensor_are_not_filled_with_random_numbers(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    (lacking,) = [name for name in tensors if name.endswith("h.1.mlp.c_fc.weight")]
    del tensors[lacking]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=rf"{copy}: 1 weights are missing, .*c_fc.weight.*copy the whole model anew"):
        TextPerplexity(copy)
