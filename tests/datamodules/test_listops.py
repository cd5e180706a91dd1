import statistics
from functools import lru_cache

import pytest
import torch

from paper_repro.datamodules.listops import (
    EOS,
    EQUALS,
    FIRST_NUMBER,
    Corpus,
    Item,
    ListOps,
    ListOpsData,
    answers,
    choose,
    pad_left,
)
from paper_repro.tests.support import golden

SMALL = ListOps(modulus=10, num_train=300, num_test=20)


@lru_cache
def generated(task: ListOps) -> Corpus:
    return task.generate()


@pytest.mark.slow
@pytest.mark.parametrize("path", golden.files("listops", "*.json.gz"))
def test_golden_nrgpt_listops(path):
    record = golden.document(path)
    settings = record["metadata"]
    task = ListOps(
        modulus=len(settings["input_set"]),
        max_depth=settings["max_depth"],
        min_children=settings["min_children"],
        max_children=settings["max_children"],
        function_probability=settings["func_node_prob"],
        functions=tuple(name.rpartition("_")[0] for name in settings["funcs_to_use"]),
        num_train=settings["num_train"],
        num_test=settings["num_test"],
    )
    corpus = generated(task)
    assert list(task.vocabulary) == record["vocab"]
    triples = {",".join(task.decode(triple).split()) for triple in corpus.excluded}
    assert triples == set(settings["exclusion_set"])
    stream = [token for item in corpus.train for token in item.tokens]
    assert (len(corpus.train), len(stream)) == (record["n_train_samples"], record["n_train_tokens"])
    assert stream[: len(record["first_train_ids"])] == record["first_train_ids"]
    assert record["train"] and record["test"] and record["test_single_ops"]
    for item, words in zip(corpus.train, record["train"], strict=False):
        assert task.decode(item.tokens) == " ".join(words)
    for name, expected in {"": record["test"], **record["test_single_ops"]}.items():
        items = corpus.single[name.rpartition("_")[0]] if name else corpus.test
        assert len(items) >= len(expected)
        for item, test in zip(items, expected, strict=False):
            assert task.decode(item.tokens) == " ".join(test["tokens"])
            assert (item.prompt, [item.result]) == (test["prompt_ids"], test["result_ids"])
    lengths = [len(item.tokens) for item in corpus.train]
    stats = record["stats"]
    assert statistics.fmean(lengths) == pytest.approx(stats["train_len_mean"], abs=1e-12)
    assert (min(lengths), max(lengths)) == (stats["train_len_min"], stats["train_len_max"])
    assert len({tuple(item.tokens) for item in corpus.train}) == stats["unique_train"]


def value_of(words, modulus):
    """The value of one expression, by a parser that shares nothing with the generator."""
    word = words.pop(0)
    if word.isdigit():
        return int(word)
    assert words.pop(0) == "("
    values = []
    while words[0] != ")":
        values.append(value_of(words, modulus))
    words.pop(0)
    ordered = sorted(values)
    name = word.removesuffix(f"_{modulus}")
    return {"max": ordered[-1], "median": ordered[len(ordered) // 2], "add": sum(values)}[name] % modulus


@pytest.mark.parametrize(
    "task",
    [
        SMALL,
        ListOps(num_train=300, num_test=20),
        ListOps(modulus=7, max_depth=4, max_children=5, function_probability=0.4, num_train=200, num_test=20, seed=1),
    ],
)
def test_every_step_is_worked_out_rightly_and_no_longer_than_the_last(task):
    corpus = generated(task)
    everything = [*corpus.train, *corpus.test, *(item for items in corpus.single.values() for item in items)]
    assert len(everything) == task.num_train + 4 * task.num_test
    for item in everything:
        assert item.tokens[-1] == EOS and item.tokens.count(EOS) == 1
        steps = task.decode(item.tokens[:-1]).split(" = ")
        assert {value_of(step.split(), task.modulus) for step in steps} == {int(steps[-1])}
        functions = [step.count("(") for step in steps]
        assert functions == list(range(len(steps) - 1, -1, -1))
        assert task.decode(item.prompt) == steps[0] + " ="
        assert task.decode([item.result]) == steps[-1]


@pytest.mark.parametrize("task", [SMALL, ListOps(num_train=300, num_test=20)])
def test_tests_hold_an_excluded_triple_and_training_does_not(task):
    corpus = generated(task)
    excluded = {" ".join(task.decode([token]) for token in triple) for triple in corpus.excluded}

    def holds(item):
        words = task.decode(item.tokens).split()
        return any(" ".join(words[start : start + 3]) in excluded for start in range(len(words)))

    assert not any(map(holds, corpus.train))
    assert all(map(holds, corpus.test))
    for name, items in corpus.single.items():
        assert all(map(holds, items))
        words = {word.rpartition("_")[0] for item in items for word in task.decode(item.tokens).split() if "_" in word}
        assert words == {name}


def test_modulus_20_has_the_papers_inputs_and_results():
    task = ListOps(num_train=2_000, num_test=20)
    corpus = generated(task)
    assert len(task.vocabulary) == 30
    assert task.vocabulary[4:10] == ("min_20", "max_20", "median_20", "add_20", "prod_20", "nadd_20")
    numbers = {word for item in corpus.train for word in task.decode(item.tokens).split() if word.isdigit()}
    assert numbers == {str(number) for number in range(20)}
    # 400 draws of 6,840 triples: a draw is new with a probability falling from 1 to 0.945
    assert 370 <= len(corpus.excluded) <= 400


def test_the_last_tenth_of_the_stream_is_validation():
    data = ListOpsData(SMALL, batch_size=5, window=16, num_evaluation_batches=3, seed=3)
    stream = [token for item in data.corpus.train for token in item.tokens]
    cut = len(stream) * 9 // 10
    assert {split: tokens.tolist() for split, tokens in data.streams.items()} == {
        "train": stream[:cut],
        "val": stream[cut:],
    }
    assert [ids.shape for ids, _ in data.evaluation_batches("val")] == [(5, 16)] * 3


VOCABULARY = 20
CORPUS = ListOps(modulus=10, num_train=200, num_test=60).generate()


class Table:
    """Logits that only the last token decides, from a fixed random table."""

    def __init__(self, seed=0, scale=1.0):
        self.table = scale * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))

    def __call__(self, ids):
        return self.table[ids]


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


def test_items_are_chosen_without_repeats():
    items = [Item([FIRST_NUMBER, EQUALS, number, EOS]) for number in range(50)]
    chosen = choose(items, 20, seed=0)
    assert len({item.result for item in chosen}) == 20
    assert chosen == choose(items, 20, seed=0) != choose(items, 20, seed=1)
