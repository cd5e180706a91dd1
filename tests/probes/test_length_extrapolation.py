import json
import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.text import TokenData
from paper_repro.datamodules.token_shards import write_shards
from paper_repro.datamodules.tokenizers import BytePairTokenizer
from paper_repro.lightning_modules.ngpt_speedup import NGPTSpeedup
from paper_repro.models.ngpt import NGPT, BaselineGPT
from paper_repro.probes import length_extrapolation
from paper_repro.probes.item_losses import ItemLosses
from paper_repro.probes.length_extrapolation import LengthExtrapolation
from paper_repro.training.schedules import Constant

pytestmark = pytest.mark.usefixtures("without_gradients")
WINDOW, FACTORS = 8, (1, 2, 4, 8)
LONGEST = WINDOW * FACTORS[-1]
SHORT, LONG = 40, 120
"""Characters of a document, which is at least LONGEST + 1 tokens long or too short."""


def _document(length: int, draw: random.Random) -> str:
    return "".join(draw.choice("abcdefgh") for _ in range(length))


TRAIN = [_document(LONG, random.Random(index)) for index in range(20)]
VAL = [_document(length, random.Random(100 + index)) for index, length in enumerate([SHORT, LONG] * 3)]
TOKENIZER = BytePairTokenizer.train(TRAIN, 257)


def prepare(folder: Path, splits: dict[str, list[str]], tokenizer: BytePairTokenizer = TOKENIZER) -> None:
    write_shards(folder, splits, {"name": "made up"}, tokenizer)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenData:
    monkeypatch.setattr(length_extrapolation, "LEAST_DOCUMENTS", 3)
    monkeypatch.setattr(length_extrapolation, "BATCH_TOKENS", 40)
    prepare(tmp_path / "corpus", {"train": TRAIN, "val": VAL})
    return TokenData({"manifest": "corpus/manifest.json"}, batch_size=2, window=WINDOW, data_root=tmp_path)


def module_of(make: Any = NGPT, **arguments: Any) -> NGPTSpeedup:
    torch.manual_seed(0)
    model = make(vocabulary_size=257, block_length=WINDOW, width=16, num_heads=2, num_layers=2, **arguments)
    for parameter in model.parameters():  # an untrained model says the same whatever it sees
        parameter.mul_(1 + torch.rand_like(parameter))
    return NGPTSpeedup(model, partial(torch.optim.AdamW, lr=1e-3), Constant()).eval()


def by_hand(model: Any, texts: list[Tensor], length: int) -> float:
    """Each token but the first, one at a time, after what precedes it in the window of the token before it."""
    model.extend(length)
    losses = []
    for ids in texts:
        for place in range(1, LONGEST + 1):
            start = (place - 1) // length * length
            logits = model(ids[None, start:place])[0, -1].double()
            losses.append(float(logits.logsumexp(-1) - logits[ids[place]]))
    model.extend(WINDOW)
    assert len(losses) == len(texts) * LONGEST
    return math.exp(math.fsum(losses) / len(losses))


@pytest.mark.parametrize("make", [NGPT, BaselineGPT])
def test_every_length_scores_the_same_tokens_once_after_their_window(make: Any, data: TokenData) -> None:
    module = module_of(make)
    findings = LengthExtrapolation().measure(module, data, 0)
    found, content = findings.metrics, json.loads(findings.attachments["lengths.json"])
    texts = [torch.tensor(TOKENIZER.encode(text)[: LONGEST + 1]) for text in VAL if len(text) == LONG]
    assert (content["texts"], content["joined"]) == (3, False)
    for factor in FACTORS:
        expected = by_hand(module.model, texts, factor * WINDOW)
        # float32 logits of a few units: 1e-6 relative each
        assert found[f"perplexity_x{factor}"] == pytest.approx(expected, rel=1e-5)
    ratio = found["perplexity_x4"] / found["perplexity_x1"]
    assert found["perplexity_ratio_x4"] == ratio != 1


def test_where_documents_are_too_short_pieces_of_the_joined_stream_are_read(data, monkeypatch):
    module = module_of()
    monkeypatch.setattr(length_extrapolation, "LEAST_DOCUMENTS", 4)
    monkeypatch.setattr(length_extrapolation, "MOST_DOCUMENTS", 5)
    found = LengthExtrapolation().measure(module, data, 0)
    stream = torch.tensor([token for text in VAL for token in [*TOKENIZER.encode(text), TOKENIZER.end_of_text]])
    texts = [stream[start : start + LONGEST + 1] for start in range(0, 5 * LONGEST, LONGEST)]
    expected = by_hand(module.model, texts, 2 * WINDOW)
    assert found.metrics["perplexity_x2"] == pytest.approx(expected, rel=1e-5)
    content = json.loads(found.attachments["lengths.json"])
    assert (content["texts"], content["joined"], content["tokens"]) == (5, True, 5 * LONGEST)
    assert content["perplexity"]["32"] == found.metrics["perplexity_x4"]


def test_the_model_is_left_as_it_was_where_the_probe_fails(data: TokenData, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of()
    before = {name: value.clone() for name, value in module.model.named_buffers()}
    monkeypatch.setattr(NGPT, "negative_log_likelihoods", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        LengthExtrapolation().measure(module, data, 0)
    after = dict(module.model.named_buffers())
    assert module.model.block_length == WINDOW and after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


BOOKS = {"corpus/manifest.json": "books/manifest.json"}


def test_books_of_the_data_s_tokenizer_take_the_place_of_its_validation_split(data, monkeypatch):
    monkeypatch.setattr(length_extrapolation, "LEAST_DOCUMENTS", 1)
    monkeypatch.setattr(length_extrapolation, "BOOK_FACTORS", (1, 2))
    probe = LengthExtrapolation(BOOKS)
    lacking = probe.measure(module_of(), data, 0)
    assert not lacking.metrics
    reason = lacking.unavailable["perplexity_x2"]
    assert reason.startswith("needs pg19: ") and "--folder books --tokenizer" in reason
    assert data.data_root is not None
    books = [_document(LONG * 10, random.Random(7))]
    prepare(Path(data.data_root) / "books", {"test": books})
    module = module_of()
    found = probe.measure(module, data, 0).metrics
    assert found.keys() == lacking.unavailable.keys()
    ids = torch.tensor(TOKENIZER.encode(books[0]))[None]
    pairs = ids[:, : 2 * WINDOW], ids[:, 1 : 2 * WINDOW + 1]
    module.model.extend(2 * WINDOW)
    expected = float(module.model.negative_log_likelihoods(*pairs).mean().exp())
    assert found["perplexity_x2"] == pytest.approx(expected, rel=1e-5)


def test_other_books_and_too_short_texts_are_refused(data: TokenData, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data.data_root is not None
    other = BytePairTokenizer.train(TRAIN, 270)
    prepare(Path(data.data_root) / "books", {"test": [_document(600, random.Random(7))]}, other)
    with pytest.raises(UsageError, match=r"another tokenizer than the training data's.*--tokenizer"):
        LengthExtrapolation(BOOKS).measure(module_of(), data, 0)
    monkeypatch.setattr(length_extrapolation, "FACTORS", (1, 1024))
    with pytest.raises(UsageError, match="reads texts of 8,193 tokens"):
        LengthExtrapolation().measure(module_of(), data, 0)


def test_the_losses_of_the_batches_of_a_split_are_kept_in_order_and_average_to_its_loss(tmp_path: Path) -> None:
    prepare(tmp_path / "corpus", {"train": TRAIN, "val": VAL, "test": TRAIN[:2]})
    manifest, module = {"manifest": "corpus/manifest.json"}, module_of()
    data = TokenData(manifest, 2, WINDOW, num_evaluation_batches=None, test=True, data_root=tmp_path)
    found = ItemLosses().measure(module, data, 0)
    losses = json.loads(found.attachments["test_losses.json"])["losses"]
    sizes = [following.numel() for _, following in data.evaluation_batches("test")]
    assert len(losses) == len(sizes) == found.metrics["test_items"] > 3 and len(set(losses)) == len(losses)
    mean = sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)
    assert mean == pytest.approx(module.evaluate(data)["test_loss"], rel=1e-5)
