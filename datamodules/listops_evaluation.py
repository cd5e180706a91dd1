"""Answers of a ListOps model, by sampling or greedily, with the prompt padded or at position 0 (NRGPT, section 3.2).

Only the number before the end of sequence is judged; the steps on the way to it are not.
Letters: N items, B items at a time, T tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paper_repro.base.errors import at_least
from paper_repro.datamodules.listops import EOS, Corpus, Item

Logits = Callable[[Tensor], Tensor]
"""Ids (B, T) to logits (B, T, V) of a causal model: those of a position do not depend on later ids."""


@dataclass(frozen=True)
class Answers:
    """What a model answered, item by item."""

    given: Tensor
    """(N,): the id before the first end of sequence after the prompt's start, or the last id if there is none."""
    expected: Tensor
    """(N,)"""

    @property
    def accuracy(self) -> float:
        """Share of right answers, higher is better, between 0 and 1."""
        return float((self.given == self.expected).double().mean())


def choose(items: Sequence[Item], count: int, seed: int) -> list[Item]:
    """Choose ``count`` different items in an order that the seed gives; the authors draw 20 while training, 100 at the
    end.

    Raises:
        ValueError: fewer items than ``count``.
    """
    if at_least("count", count, 1) > len(items):
        raise ValueError(f"count must be at most the {len(items)} items that there are, got {count}")
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))
    return [items[index] for index in order[:count].tolist()]


def pad_left(items: Sequence[Item], corpus: Corpus, seed: int) -> list[list[int]]:
    """Put real training text before each prompt, so that all are ``corpus.longest`` tokens long, as while training.

    The text ends with a sample's end of sequence, at a place that the seed and the item's position give.

    Raises:
        ValueError: a prompt that is longer, or too little training text.
    """
    stream = [token for item in corpus.train for token in item.tokens]
    ends = torch.tensor([index + 1 for index, token in enumerate(stream) if token == EOS])
    ends = ends[ends >= corpus.longest]
    if not len(ends):
        raise ValueError(
            f"{len(stream)} tokens of training text, expected {corpus.longest} to pad with: raise num_train"
        )
    chosen = ends[torch.randint(len(ends), (len(items),), generator=torch.Generator().manual_seed(seed))]
    padding = []
    for item, end in zip(items, chosen.tolist(), strict=True):
        room = corpus.longest - len(item.prompt)
        if room < 0:
            raise ValueError(f"a prompt of {len(item.prompt)} tokens, expected at most {corpus.longest}: it is no test")
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
) -> Answers:
    """Let a model go on from the prompt of each item, at temperature 1, and read off its answer.

    Every item has random numbers of its own, so the answers depend on neither ``batch_size`` nor the other items.
    Deviation: the authors' draws are not seeded, and generation goes on behind the end of sequence, which changes
    nothing.

    Args:
        logits: the model, in evaluation mode; called with int64 ids on the CPU.
        num_tokens: how many tokens may be generated, the authors' number is ``corpus.longest``.
        sampled: draw each token from the softmax, as the authors do; else take the largest logit.
        padding: ids before each prompt, see ``pad_left``; None starts each prompt at position 0.
        context: the most tokens that the model takes.

    Raises:
        ValueError: no item, paddings that are not one for each item, or more tokens than the context holds.
    """
    if not items:
        raise ValueError("no item to answer: give at least one")
    at_least("num_tokens", num_tokens, 1)
    at_least("batch_size", batch_size, 1)
    before = [[] for _ in items] if padding is None else [list(some) for some in padding]
    if len(before) != len(items):
        raise ValueError(f"{len(before)} paddings for {len(items)} items: give one for each")
    prompts = [some + item.prompt for some, item in zip(before, items, strict=True)]
    longest = max(map(len, prompts))
    if longest + num_tokens > context:
        raise ValueError(
            f"{longest} tokens of padding and prompt and {num_tokens} to generate are above the context of {context}: "
            "give a longer context or shorter prompts"
        )
    uniforms = torch.rand(len(items), num_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    given = []
    for first in range(0, len(items), batch_size):
        part = slice(first, first + batch_size)
        texts = _continue(logits, prompts[part], uniforms[part] if sampled else None, num_tokens)
        starts = map(len, before[part])
        given += [_answer(text[start:]) for text, start in zip(texts, starts, strict=True)]
    return Answers(torch.tensor(given), torch.tensor([item.result for item in items]))


def _answer(text: list[int]) -> int:
    return text[text.index(EOS) - 1] if EOS in text else text[-1]


def _continue(logits: Logits, prompts: list[list[int]], uniforms: Tensor | None, num_tokens: int) -> list[list[int]]:
    """Continue prompts of any lengths side by side: a causal model does not see what lies right of a row's
    last token.
    """
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    rows = torch.arange(len(prompts))
    ids = torch.full((len(prompts), int(lengths.max()) + num_tokens), EOS)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    for step in range(num_tokens):
        width = int(lengths.max()) + step
        scores = logits(ids[:, :width]).to("cpu", torch.float64)[rows, lengths + step - 1]
        token = scores.argmax(-1) if uniforms is None else _draw(scores, uniforms[:, step])
        ids[rows, lengths + step] = token.masked_fill(ended, EOS)
        ended |= token == EOS
        if bool(ended.all()):
            break
    return [row[: length + num_tokens].tolist() for row, length in zip(ids, lengths.tolist(), strict=True)]


def _draw(scores: Tensor, uniforms: Tensor) -> Tensor:
    """Return the token at which the distribution function of softmax(scores), (B, V), passes the uniform
    number, (B,).
    """
    passed = scores.softmax(-1).cumsum(-1) <= uniforms[:, None]
    return passed.sum(-1).clamp(max=scores.shape[-1] - 1)
