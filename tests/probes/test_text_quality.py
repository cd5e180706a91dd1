import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import FINISHED, Cell
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.tokenizers import CharacterTokenizer
from paper_repro.metrics.text_scores import TextScorer
from paper_repro.models import nrgpt
from paper_repro.models.generation import generate
from paper_repro.probes.text_quality import ATTACHMENT, ReferenceTexts, TextQuality, reference_text
from paper_repro.tests.probes.doubles import Module, Text
from paper_repro.tests.support import tiny_gpt2

PROMPTS = ["\n\n", "to be", "or not", "ask"]


class Letters(Text):
    tokenizer = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz .\n")


def small(kind: Any = nrgpt.NRGPT_H_FF1, **options: Any) -> Module:
    torch.manual_seed(0)
    # Three more outputs than the vocabulary has characters, as with GPT-2's 50,304.
    return Module(
        kind(**{"vocabulary_size": 32, "block_length": 40, "width": 8, "num_heads": 1, "num_steps": 4, **options})
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gpt2.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("LTP_PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "harper", None)
    monkeypatch.setattr(
        "paper_repro.metrics.similarity._load",
        lambda *_options: lambda pieces: torch.tensor([[1.0, len(piece)] for piece in pieces]),
    )


def measure(module: Module, data: CounterBasedDataModule | None = None, **options: Any) -> Any:
    probe = TextQuality(**{"prompts": PROMPTS, "num_tokens": 60, **options})
    with torch.no_grad():
        return probe.measure(module, data or Letters(), seed=0)


def test_the_text_of_the_lowest_perplexity_is_reported(folder: Path) -> None:
    module = small()
    findings = measure(module, perplexity_model=str(folder))
    texts = json.loads(findings.attachments[ATTACHMENT])["texts"]
    assert [(text["prompt"], text["seed"]) for text in texts] == list(zip(PROMPTS, (5, 17, 42, 99), strict=True))
    best = min(texts, key=lambda text: text["scores"]["perplexity_tiny"])
    assert [text["reported"] for text in texts] == [text is best for text in texts]
    assert findings.metrics == {**best["scores"], "texts_averaged": 1.0}
    # JSON keeps a float's digits, so the texts are scored anew to the same numbers
    scorer, tokenizer = TextScorer(str(folder)), Letters.tokenizer
    for text in texts:
        assert scorer(text["text"]).values == text["scores"]
        ids = generate(module.model, tokenizer.encode(text["prompt"]), 60, seed=text["seed"], num_allowed=29)
        assert text["text"] == tokenizer.decode(ids).lstrip("\n") and len(ids) == 60 + len(text["prompt"])
    assert texts[1]["text"].startswith("to be")
    mean = measure(small(), perplexity_model=str(folder), choose="mean").metrics
    for name in ("perplexity_tiny", "distinct_1", "gqs_fixed"):
        assert mean[name] == math.fsum(text["scores"][name] for text in texts) / 4


def test_without_perplexity_the_mean_takes_its_place_and_says_so() -> None:
    findings = measure(small())
    mean = measure(small(), choose="mean")
    assert findings.metrics == mean.metrics and findings.metrics["texts_averaged"] == 4
    assert "perplexity" not in findings.metrics
    assert findings.unavailable["perplexity"].startswith("needs gpt2: `hf download")
    assert findings.unavailable["perplexity"].endswith("; other columns are means over 4 texts, not of the best")
    assert "other columns" not in mean.unavailable["perplexity"]


def test_tokens_stay_within_the_context_where_asked() -> None:
    document = json.loads(measure(small(), within_context=True).attachments[ATTACHMENT])
    lengths = [text["characters"] + (2 if text["prompt"] == "\n\n" else 0) for text in document["texts"]]
    assert lengths[1:] == [40, 40, 40] and lengths[0] <= 40
    with pytest.raises(UsageError, match="40 tokens, the context holds 40"):
        measure(small(), prompts=["a" * 40], seeds=[1], within_context=True)


CORPUS = "".join(f"Line {number} has words {number * 7} and {'long ' * (number % 4)}ends.\n" for number in range(200))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(CORPUS)
    monkeypatch.setenv("PAPER_REPRO_DATA", str(tmp_path))


def text_of(seed: int = 0, **text: Any) -> dict[str, Any]:
    own = {"content": None, "characters": 300, "shuffle_words": False, "repeat": 1, **text}
    return {"text": own, "seed": seed, "data": {"files": {"text": "text.txt"}}}


@pytest.mark.usefixtures("corpus")
def test_reference_texts_are_whole_lines_and_shuffling_keeps_their_words() -> None:
    plain = [reference_text(text_of(seed))[0] for seed in range(20)]
    assert all(f"\n{text}\n" in f"\n{CORPUS}" and 200 < len(text) <= 300 for text in plain)
    assert len(set(plain)) > 15
    for seed in range(5):
        shuffled = reference_text(text_of(seed, shuffle_words=True))[0]
        assert Counter(shuffled.split()) == Counter(plain[seed].split()) and shuffled != plain[seed]
        lines = [[len(line.split()) for line in text.split("\n")] for text in (shuffled, plain[seed])]
        assert lines[0] == lines[1]
    assert reference_text(text_of(content="One line.", repeat=3))[0] == "One line.\nOne line.\nOne line."


@pytest.mark.usefixtures("corpus")
def test_reference_texts_are_scored_where_they_can_be() -> None:
    scorer = {"_target_": "paper_repro.metrics.text_scores.TextScorer"}
    texts = ["The dog sees the dog.", ""]
    cells = [Cell(text, {**text_of(content=text), "scorer": scorer}) for text in texts]
    plain, empty = ReferenceTexts().run(cells, Path(), None)  # type: ignore[arg-type]
    assert plain.status == empty.status == FINISHED
    assert plain.metrics["distinct_1"] == 1.0 and "apcs_lines" in plain.unavailable
    assert empty.metrics == {"gqs_fixed": 0.0} and "distinct_1" in empty.unavailable
