import pytest
import torch

from paper_repro.datamodules.listops import EOS, EQUALS, FIRST_NUMBER, Item, ListOps, answers, choose, pad_left

TASK = ListOps(modulus=10, num_train=200, num_test=60)
CORPUS = TASK.generate()
VOCABULARY = len(TASK.vocabulary)
SURE = 200.0


class Oracle:
    """A causal "model" that goes on with the text of the item whose prompt stands last in the window."""

    def __init__(self, items, padded=False):
        self.texts = {tuple(item.prompt): item.tokens for item in items}
        self.shapes = []
        self.padded = padded

    def __call__(self, ids):
        self.shapes.append(tuple(ids.shape))
        logits = torch.zeros(*ids.shape, VOCABULARY)
        for row, text in enumerate(ids.tolist()):
            for position in range(len(text)):
                logits[row, position, self._next(text[: position + 1])] = SURE
        return logits

    def _next(self, seen):
        start = 0
        if self.padded:
            start = next((at + 1 for at in range(len(seen) - 2, -1, -1) if seen[at] == EOS), 0)
        seen = seen[start:]
        if EQUALS not in seen:
            return EOS
        text = self.texts.get(tuple(seen[: seen.index(EQUALS) + 1]), [])
        return text[len(seen)] if len(seen) < len(text) else EOS


class Table:
    """Logits that only the last token decides, from a fixed random table."""

    def __init__(self, seed=0, scale=1.0):
        self.table = scale * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))

    def __call__(self, ids):
        return self.table[ids]


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_model_that_knows_every_text_has_accuracy_one(sampled, batch_size):
    oracle = Oracle(CORPUS.test)
    found = answers(oracle, CORPUS.test, num_tokens=CORPUS.longest, sampled=sampled, batch_size=batch_size)
    assert found.tolist() == [item.result for item in CORPUS.test]
    assert max(width for _, width in oracle.shapes) <= 128


def test_model_that_knows_every_text_has_accuracy_one_behind_padding():
    padding = pad_left(CORPUS.test, CORPUS, seed=0)
    oracle = Oracle(CORPUS.test, padded=True)
    found = answers(oracle, CORPUS.test, num_tokens=CORPUS.longest, padding=padding)
    assert found.tolist() == [item.result for item in CORPUS.test]
    assert {width for _, width in oracle.shapes} >= {CORPUS.longest}


def test_accuracy_is_the_share_of_right_answers():
    known = CORPUS.test[:15]
    right = sum(tuple(item.prompt) in {tuple(other.prompt) for other in known} for item in CORPUS.test)
    found = answers(Oracle(known), CORPUS.test, num_tokens=CORPUS.longest, sampled=False)
    assert right < len(CORPUS.test)
    # an unknown prompt is answered by the end of sequence, before which "=" stands
    assert sum(answer == item.result for answer, item in zip(found.tolist(), CORPUS.test, strict=True)) == right
    assert (found == EQUALS).sum() == len(CORPUS.test) - right


def test_padding_is_real_text_that_ends_a_sample_and_fills_to_the_longest():
    stream = " ".join(str(token) for item in CORPUS.train for token in item.tokens) + " "
    padding = pad_left(CORPUS.test, CORPUS, seed=1)
    for some, item in zip(padding, CORPUS.test, strict=True):
        assert len(some) + len(item.prompt) == CORPUS.longest
        assert some[-1] == EOS
        assert " ".join(map(str, some)) + " " in stream
    assert padding == pad_left(CORPUS.test, CORPUS, seed=1) != pad_left(CORPUS.test, CORPUS, seed=2)


def test_answers_depend_on_the_seed_and_neither_on_batches_nor_on_the_other_items():
    options = {"num_tokens": 30, "seed": 5}
    whole = answers(Table(), CORPUS.test, **options)
    assert torch.equal(whole, answers(Table(), CORPUS.test, batch_size=7, **options))
    assert torch.equal(whole[:9], answers(Table(), CORPUS.test[:9], **options))
    assert not torch.equal(whole, answers(Table(), CORPUS.test, num_tokens=30, seed=6))
    greedy = [answers(Table(), CORPUS.test, num_tokens=30, sampled=False, seed=seed) for seed in (1, 2)]
    assert torch.equal(*greedy)


def test_tokens_are_drawn_from_the_softmax():
    """All prompts end with "=": the first token is drawn 20,000 times from one distribution."""
    item = CORPUS.test[0]
    table = Table(scale=1.5)
    probabilities = table.table[EQUALS].softmax(0)
    found = answers(table, [item] * 20_000, num_tokens=1, batch_size=20_000)
    counts = torch.bincount(found, minlength=VOCABULARY).double()
    # an end of sequence drawn at once leaves "=" as the answer
    expected = probabilities.double() * 20_000
    expected[EQUALS] += expected[EOS]
    expected[EOS] = 0
    # five standard deviations of each count, with a fixed seed
    assert bool(((counts - expected).abs() <= 5 * expected.sqrt() + 1e-9).all())


def test_answer_without_an_end_is_the_last_token():
    def always_seven(ids):
        logits = torch.zeros(*ids.shape, VOCABULARY)
        logits[..., FIRST_NUMBER + 7] = SURE
        return logits

    found = answers(always_seven, CORPUS.test, num_tokens=5)
    assert set(found.tolist()) == {FIRST_NUMBER + 7}


def test_items_are_chosen_without_repeats():
    items = [Item([FIRST_NUMBER, EQUALS, number, EOS]) for number in range(50)]
    chosen = choose(items, 20, seed=0)
    assert len({item.result for item in chosen}) == 20
    assert chosen == choose(items, 20, seed=0) != choose(items, 20, seed=1)
    assert choose(items, 50, seed=0) != items and len(choose(items, 50, seed=0)) == 50
    with pytest.raises(ValueError, match="count must be at most the 50 items that there are, got 51"):
        choose(items, 51, seed=0)


def test_padding_that_cannot_be_made_and_a_context_that_is_too_short_are_refused():
    with pytest.raises(ValueError, match="above the context of 20: give a longer context"):
        answers(Table(), CORPUS.test[:3], num_tokens=10, context=20)
    short = ListOps(modulus=10, num_train=1, num_test=60).generate()
    with pytest.raises(ValueError, match=r"tokens of training text, expected .* to pad with: raise num_train"):
        pad_left(short.test, short, seed=0)
