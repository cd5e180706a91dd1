"""ListOps: nested maximum, median and modular sum, worked out one operation at a time (NRGPT, section 3.2 and F.3).

A sample is one text: the expression, then "=" and the expression with one more operation worked out, until a single
number stands there, then end of sequence:

    add_10 ( 0 median_10 ( 1 7 1 ) 2 ) = add_10 ( 0 1 2 ) = 3 <eos>

A model's answers are judged by the number before the end of sequence alone, not by the steps on the way to it.

Letters: B windows or items at a time, T tokens, N items, V vocabulary.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paper_repro.base.errors import at_least, one_of
from paper_repro.datamodules.array_shards import hashes_of, kept
from paper_repro.datamodules.counter_based import generator_of, permutation
from paper_repro.datamodules.text import Stream, WindowData

EOS, OPEN, CLOSE, EQUALS = range(4)
MARKS = ("<eos>", "(", ")", "=")
NAMES = ("min", "max", "median", "add", "prod", "nadd")
"""Every function of the vocabulary; the authors keep ids for those that their data never use."""
FUNCTIONS: dict[str, Callable[[list[int]], int]] = {
    "max": max,
    "median": lambda values: sorted(values)[len(values) // 2],
    "add": sum,
}
"""What can be drawn; each result is then taken modulo.  The median of two numbers is the larger."""
FIRST_NUMBER = len(MARKS) + len(NAMES)
EXCLUDED_SHARE = 0.05
MOST_DRAWS = 1_000
"""Samples drawn for each that is wanted, before the search is given up; about 30 are drawn where it succeeds."""

Node = int | list[Any]
"""A number, or a function node: its name, then its children."""


class Item(NamedTuple):
    """One sample, as token ids with the end of sequence."""

    tokens: list[int]

    @property
    def prompt(self) -> list[int]:
        """The expression and its "="."""
        return self.tokens[: self.tokens.index(EQUALS) + 1]

    @property
    def result(self) -> int:
        """The last number."""
        return self.tokens[-2]


class Corpus(NamedTuple):
    """Samples in the order in which they were drawn."""

    train: list[Item]
    test: list[Item]
    """Each holds at least one excluded triple of numbers; no training sample does."""
    single: dict[str, list[Item]]
    """Tests of one operation alone, by its name without the modulus."""
    excluded: list[tuple[int, ...]]

    @property
    def longest(self) -> int:
        """Tokens of the longest text of all tests: how many are generated for an answer."""
        return max(len(item.tokens) for item in chain(self.test, *self.single.values()))


@dataclass(frozen=True)
class ListOps:
    """The distribution of expressions, and the split into training samples and tests.

    Deviation: the paper states modulus 20, the authors' data and sweeps have 10; both are made, 20 is the default.

    Args:
        modulus: the inputs are 0 to modulus - 1, every result is taken modulo it.
        max_depth: levels of functions; 1 has no nesting.
        min_children, max_children: of a function, uniform between them.
        function_probability: that a child is a function where the depth allows.
        functions: what is drawn from, in this order; of "max", "median" and "add".
        num_train, num_test: samples; ``num_test`` also of each operation alone.
        seed: of Python's generator, whose integer streams are the same on every machine.
    """

    modulus: int = 20
    max_depth: int = 2
    min_children: int = 2
    max_children: int = 3
    function_probability: float = 0.25
    functions: tuple[str, ...] = ("max", "median", "add")
    num_train: int = 50_000
    num_test: int = 2_000
    seed: int = 42

    def __post_init__(self) -> None:
        at_least("modulus", self.modulus, 3)
        for name in ("max_depth", "min_children", "num_train", "num_test"):
            at_least(name, getattr(self, name), 1)
        at_least("max_children", self.max_children, max(3, self.min_children))
        at_least("seed", self.seed, 0)
        if not 0 <= self.function_probability < 1:
            raise ValueError(f"function_probability must be from 0 to below 1, got {self.function_probability}")
        if isinstance(self.functions, str) or not self.functions:
            raise ValueError(f"functions must be a list of names from {', '.join(FUNCTIONS)}, got {self.functions!r}")
        for name in self.functions:
            one_of("functions", name, FUNCTIONS)
        object.__setattr__(self, "functions", tuple(self.functions))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The words by token id: 20 of them for modulus 10, 30 for modulus 20."""
        functions = (f"{name}_{self.modulus}" for name in NAMES)
        return (*MARKS, *functions, *(str(number) for number in range(self.modulus)))

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the words of token ids, joined by blanks."""
        return " ".join(self.vocabulary[token] for token in tokens)

    def generate(self) -> Corpus:
        """Draw everything: excluded triples, training and test samples, then tests of each operation alone.

        For modulus 10 this is the authors' data, token by token.  ValueError: nearly every sample holds an excluded
        triple, because they have so many children, or nearly none does.
        """
        draws = random.Random(self.seed)
        numbers = range(FIRST_NUMBER, FIRST_NUMBER + self.modulus)
        num_draws = int(self.modulus**3 * EXCLUDED_SHARE)
        excluded: set[tuple[int, ...]] = {tuple(draws.sample(numbers, 3)) for _ in range(num_draws)}
        train, test = self._split(draws, excluded, self.functions, self.num_train)
        single = {name: self._split(draws, excluded, (name,), 0)[1] for name in self.functions}
        return Corpus(train, test, single, sorted(excluded))

    def _split(
        self, draws: random.Random, excluded: set[tuple[int, ...]], functions: Sequence[str], num_train: int
    ) -> tuple[list[Item], list[Item]]:
        """Draw ``num_train`` samples without an excluded triple and ``num_test`` with one."""
        without: list[Item] = []
        holding: list[Item] = []
        most = MOST_DRAWS * (num_train + self.num_test)
        while len(without) < num_train or len(holding) < self.num_test:
            if len(without) + len(holding) == most:
                raise ValueError(
                    f"of {most} samples of {', '.join(functions)} {len(holding)} hold an excluded triple, expected "
                    f"{num_train} without and {self.num_test} with one: change max_children or modulus"
                )
            tokens = self._sample(draws, functions)
            clean = excluded.isdisjoint(zip(tokens, tokens[1:], tokens[2:], strict=False))
            (without if clean else holding).append(Item(tokens))
        return without[:num_train], holding[: self.num_test]

    def _sample(self, draws: random.Random, functions: Sequence[str]) -> list[int]:
        node: Node = self._tree(draws, functions, self.max_depth)
        tokens: list[int] = []
        while not isinstance(node, int):
            _write(node, tokens)
            tokens.append(EQUALS)
            node = self._work_out_one(node)
        _write(node, tokens)
        tokens.append(EOS)
        return tokens

    def _tree(self, draws: random.Random, functions: Sequence[str], levels: int) -> list[Any]:
        node: list[Any] = [draws.choice(functions)]
        for _ in range(draws.randint(self.min_children, self.max_children)):
            # At the last level the draw is made all the same, and not looked at: the authors' order.
            nested = draws.random() < self.function_probability and levels > 1
            node.append(self._tree(draws, functions, levels - 1) if nested else draws.choice(range(self.modulus)))
        return node

    def _work_out_one(self, root: list[Any]) -> Node:
        """Return the tree with one function node replaced by its value: the first child that is one, and so on down."""
        for place, child in enumerate(root):
            if isinstance(child, list):
                root[place] = self._work_out_one(child)
                return root
        return FUNCTIONS[root[0]](root[1:]) % self.modulus


def _write(node: Node, tokens: list[int]) -> None:
    if isinstance(node, int):
        tokens.append(FIRST_NUMBER + node)
        return
    tokens += (len(MARKS) + NAMES.index(node[0]), OPEN)
    for child in node[1:]:
        _write(child, tokens)
    tokens.append(CLOSE)


@dataclass(eq=False, repr=False)
class ListOpsData(WindowData):
    """Windows of the training samples put end to end (NRGPT, F.3): a batch is (ids (B, T), next ids (B, T)), int64.

    The last tenth of the stream is validation, as the authors have it: it shares duplicates with training, and is not
    the held-out test set, which ``corpus.test`` and ``corpus.single`` are.  Splits "train" and "val", of
    ``num_evaluation_batches`` batches at random places, which depend on the seed only.

    Args:
        task: the expressions; ``ListOps()`` if None.
        batch_size: B.
        window: T.
        num_evaluation_batches: batches of a split that is evaluated.
        seed: of the windows; ``task.seed`` is that of the samples.
        cache: folder that keeps the generated samples (about 4 s for 50,000), or None.
    """

    splits = ("train", "val")
    stream_name = "listops"

    task: ListOps = None  # type: ignore[assignment]
    batch_size: int = 64
    window: int = 128
    num_evaluation_batches: int = 10
    seed: int = 0
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        self.check_numbers("batch_size", "window", "num_evaluation_batches", "seed")
        self.evaluation_seed = self.seed
        self.task = ListOps() if self.task is None else self.task

    @cached_property
    def corpus(self) -> Corpus:
        """The samples, generated or read from the cache on first use."""
        if self.cache is None:
            return self.task.generate()

        def packed() -> dict[str, npt.NDArray[np.uint8]]:
            return {"corpus": np.frombuffer(json.dumps(self.task.generate()).encode(), np.uint8)}

        found = kept(self.cache, "listops", __name__, sorted(asdict(self.task).items()), packed)
        train, test, single, excluded = json.loads(found["corpus"].tobytes())
        return Corpus(
            [Item(*item) for item in train],
            [Item(*item) for item in test],
            {name: [Item(*item) for item in items] for name, items in single.items()},
            [tuple(triple) for triple in excluded],
        )

    def open(self) -> Mapping[str, Stream]:
        """Return the token ids of each split, (tokens,), int64."""
        stream = np.array([*chain.from_iterable(item.tokens for item in self.corpus.train)])
        cut = len(stream) * 9 // 10
        return {"train": stream[:cut], "val": stream[cut:]}

    def data_hashes(self) -> dict[str, str]:
        tests = chain(self.corpus.test, *self.corpus.single.values())
        parts = {**self.streams, "test": np.array([*chain.from_iterable(item.tokens for item in tests)])}
        return hashes_of({name: [np.asarray(tokens[:])] for name, tokens in parts.items()})


# Answers of a model.

Logits = Callable[[Tensor], Tensor]
"""Ids (B, T) to logits (B, T, V) of a causal model: those of a position do not depend on later ids."""


def choose(items: Sequence[Item], count: int, seed: int) -> list[Item]:
    """Choose ``count`` different items; the authors draw 20 while training, 100 at the end."""
    if count > len(items):
        raise ValueError(f"count must be at most the {len(items)} items that there are, got {count}")
    return [items[index] for index in permutation(len(items), seed)[:count].tolist()]


def pad_left(items: Sequence[Item], corpus: Corpus, seed: int) -> list[list[int]]:
    """Put real training text before each prompt, so that all are ``corpus.longest`` tokens long, as while training.

    The text ends with a sample's end of sequence, at a random place.  ValueError: too little training text.
    """
    stream = [token for item in corpus.train for token in item.tokens]
    ends = torch.tensor([index + 1 for index, token in enumerate(stream) if token == EOS])
    ends = ends[ends >= corpus.longest]
    if not len(ends):
        raise ValueError(
            f"{len(stream)} tokens of training text, expected {corpus.longest} to pad with: raise num_train"
        )
    chosen = ends[torch.randint(len(ends), (len(items),), generator=generator_of(seed))]
    padding = []
    for item, end in zip(items, chosen.tolist(), strict=True):
        room = corpus.longest - len(item.prompt)
        padding.append(stream[end - room : end])
    return padding


@torch.no_grad()
def answers(
    logits: Logits,
    items: Sequence[Item],
    *,
    num_tokens: int,
    sampled: bool = True,
    padding: Sequence[Sequence[int]] | None = None,
    context: int = 128,
    batch_size: int = 100,
    seed: int = 0,
) -> Tensor:
    """Return what a model answers, going on from the prompt of each item at temperature 1, (N,).

    An answer is the id before the first end of sequence after the prompt's start, or the last id if there is none.

    Every item has random numbers of its own, so the answers depend on neither ``batch_size`` nor the other items.
    Deviation: the authors' draws are not seeded, and generation goes on behind the end of sequence, which changes
    nothing.

    Args:
        logits: the model, in evaluation mode; called with int64 ids on the CPU.
        num_tokens: how many tokens may be generated, the authors' number is ``corpus.longest``.
        sampled: draw each token from the softmax, as the authors do; else take the largest logit.
        padding: ids before each prompt, see ``pad_left``; None starts each prompt at position 0.
        context: the most tokens that the model takes; ValueError for more.
    """
    before = [[] for _ in items] if padding is None else [list(some) for some in padding]
    prompts = [some + item.prompt for some, item in zip(before, items, strict=True)]
    longest = max(map(len, prompts))
    if longest + num_tokens > context:
        raise ValueError(
            f"{longest} tokens of padding and prompt and {num_tokens} to generate are above the context of {context}: "
            "give a longer context or shorter prompts"
        )
    uniforms = torch.rand(len(items), num_tokens, dtype=torch.float64, generator=generator_of(seed))
    given = []
    for first in range(0, len(items), batch_size):
        part = slice(first, first + batch_size)
        texts = _continue(logits, prompts[part], uniforms[part] if sampled else None, num_tokens)
        starts = map(len, before[part])
        for text, start in zip(texts, starts, strict=True):
            own = text[start:]
            given.append(own[own.index(EOS) - 1] if EOS in own else own[-1])
    return torch.tensor(given)


def _continue(logits: Logits, prompts: list[list[int]], uniforms: Tensor | None, num_tokens: int) -> list[list[int]]:
    """Continue prompts of any lengths side by side; a causal model does not see what follows a row's last token."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    rows = torch.arange(len(prompts))
    ids = torch.full((len(prompts), int(lengths.max()) + num_tokens), EOS)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    for step in range(num_tokens):
        width = int(lengths.max()) + step
        scores = logits(ids[:, :width]).to("cpu", torch.float64)[rows, lengths + step - 1]
        if uniforms is None:
            token = scores.argmax(-1)
        else:  # the token at which the distribution function of the softmax passes the uniform
            passed = scores.softmax(-1).cumsum(-1) <= uniforms[:, step, None]
            token = passed.sum(-1).clamp(max=scores.shape[-1] - 1)
        ids[rows, lengths + step] = token.masked_fill(ended, EOS)
        ended |= token == EOS
        if bool(ended.all()):
            break
    return [row[: length + num_tokens].tolist() for row, length in zip(ids, lengths.tolist(), strict=True)]
