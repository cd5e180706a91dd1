"""A step over many words in pieces against all logits at once."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels import words_in_pieces as op
from paper_repro.kernels.linear_ce import op as linear_ce
from paper_repro.tests.support.ops import assert_same, kept_bytes, outcome

IGNORED = linear_ce.IGNORED


@pytest.fixture(autouse=True)
def _few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "LEAST_WORDS", 2)
    monkeypatch.setattr(linear_ce, "chunk_size", lambda *_: 3)


def _inputs(words: int = 29, width: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, W, targets of which one does not count, and what the change of a step is made of."""
    generator = torch.Generator().manual_seed(1)
    logits, embedding, mixed = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((2, 4, words), (width, words), (width, width))
    )
    targets = torch.randint(words, (2, 4), generator=generator)
    targets[1, 2] = IGNORED
    return logits, embedding, targets, mixed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_loss_prediction_and_gradients_are_those_of_the_definition(dtype: torch.dtype) -> None:
    logits, embedding, targets, mixed = _inputs()

    def by_definition(embedding: Tensor, mixed: Tensor) -> tuple[Tensor, ...]:
        read = torch.softmax(logits, -1)
        moved = read - torch.tanh(read @ embedding.mT @ mixed) @ embedding
        return functional.cross_entropy(moved.flatten(0, 1), targets.flatten()), moved.detach()

    def in_pieces(embedding: Tensor, mixed: Tensor) -> tuple[Tensor, ...]:
        given = logits.to(dtype)
        pieces = op.words_in_pieces(given, embedding)
        assert pieces is not None
        change = torch.tanh(pieces.embedded(given, embedding) @ mixed)
        return pieces.moved(given, change, embedding, targets)

    expected = outcome(by_definition, [embedding, mixed])
    found = outcome(in_pieces, [embedding.to(dtype), mixed.to(dtype)])
    assert_same(found, expected, 1e-13 if dtype == torch.float64 else 5e-6)


def test_nothing_of_the_size_of_the_logits_is_kept_but_the_two_predictions() -> None:
    logits, embedding, targets, mixed = _inputs(words=997)
    embedding.requires_grad_()

    def forward() -> object:
        pieces = op.words_in_pieces(logits, embedding)
        assert pieces is not None
        found = pieces.moved(logits, pieces.embedded(logits, embedding) @ mixed, embedding, targets)
        moved.append(found[1])
        return found

    moved = list[Tensor]()
    kept = kept_bytes(forward, logits, embedding)
    assert kept < 1.2 * (moved[0].nbytes + embedding.nbytes)  # y' and the gradient of W


def test_the_definition_is_taken_where_logits_have_a_gradient_and_where_words_are_few() -> None:
    logits, embedding, *_ = _inputs()
    assert op.words_in_pieces(logits.clone().requires_grad_(), embedding) is None
    assert op.words_in_pieces(logits[..., :1], embedding[:, :1]) is None
