"""What an EBT on language thinks of the tokens of a text: energies by step, probabilities, the sample chosen.

Legend: N samples, T tokens, V vocabulary, S steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.tokenizers import Tokenizer
from paper_repro.metrics.likelihood import summed_negative_log_likelihood
from paper_repro.models.ebt import EBT
from paper_repro.probes.thoughts.surface import Surface, surfaces
from paper_repro.probes.thoughts.trace import Manner, Trace, trace


@dataclass(frozen=True)
class Place:
    """What was thought of one token."""

    token: str | None
    """The text's own token there; None after the end of the text."""
    own_probability: float | None
    """What the prediction gives the text's own token."""
    thought: str
    """The token that is predicted."""
    probability: float
    """What the prediction gives that one."""
    sample: int
    """Which sample was chosen: that of the lowest energy after the last step."""
    energies: list[float]
    """The energies of that sample after 0, 1, ..., S steps."""

    @property
    def name(self) -> str:
        """The token that this thought is about: the text's own, or else the predicted one."""
        return self.thought if self.token is None else self.token


@dataclass(frozen=True)
class TextThought:
    """What was thought of a text of T tokens in S steps: of its tokens from the second on, and of what follows."""

    places: list[Place]
    """T of them."""
    perplexity: float | None
    """The perplexity of the text's T - 1 tokens after the first; None where it has one token."""
    following: list[tuple[str, float]]
    """The likeliest tokens after the text, the first one first, with their probabilities."""
    trace: Trace
    """Its kept places are those after the text, one."""


class Reader:
    """Thinks about texts with one model.

    Args:
        model, tokenizer: of one cell.
        manner: how.
    """

    def __init__(self, model: EBT, tokenizer: Tokenizer, manner: Manner) -> None:
        self.model, self.tokenizer, self.manner = model, tokenizer, manner
        self.num_words = min(tokenizer.vocabulary_size, model.vocabulary_size)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text.

        Raises:
            UsageError: an unknown token, no token, or more than the model's context holds.
        """
        ids = self.tokenizer.encode(text)
        context = self.model.block_length
        if not ids:
            raise UsageError("the prompt is empty, expected at least one token: a blank prompt is two newlines")
        if len(ids) > context:
            raise UsageError(
                f"the prompt {text[:40]!r} has {len(ids)} tokens, the model's context holds {context}: shorten it"
            )
        if max(ids) >= self.model.vocabulary_size:
            raise UsageError(
                f"the prompt {text[:40]!r} has the token id {max(ids)}, the model's vocabulary_size is "
                f"{self.model.vocabulary_size}: leave out {self.tokenizer.decode([max(ids)])!r}"
            )
        return ids

    def read(self, ids: Sequence[int], num_steps: int, num_following: int = 5) -> TextThought:
        """Think about every token of a text from the second on, and about what follows it.

        Raises:
            ValueError: as ``trace``.
        """
        found = trace(self.model, self._batch(ids), num_steps, self.manner, kept=1)
        logits, best = (part[0] for part in found.last.choose())  # (T, V), (T,)
        following = torch.softmax(logits[-1, : self.num_words], -1).topk(min(num_following, self.num_words))
        tokens = [self.tokenizer.decode([index]) for index in following.indices.tolist()]
        return TextThought(
            list(self._places(ids, logits, best, found)),
            perplexity(logits, ids),
            list(zip(tokens, following.values.tolist(), strict=True)),
            found,
        )

    def extend(self, ids: Sequence[int], num_tokens: int, num_steps: int) -> Iterator[Place]:
        """Yield what is thought of each of ``num_tokens`` further tokens; the likeliest one is taken each time.

        The model sees the last tokens that its context holds.

        Raises:
            ValueError: as ``trace``.
        """
        so_far = list(ids)
        for number in range(num_tokens):
            context = self._batch(so_far[-self.model.block_length :])
            found = trace(self.model, context, num_steps, self.manner, last=1, name=f"token {number}")
            logits, best = (part[0] for part in found.last.choose())  # (1, V), (1,)
            so_far.append(int(logits[0, : self.num_words].argmax()))
            yield from self._places([so_far[-1]], logits, best, found)

    def around(self, ids: Sequence[int], thought: TextThought) -> list[Surface]:
        """Return the energy around the prediction of the token after the text, by the sample that was chosen there."""
        with torch.no_grad():
            energies = self.model.energies(self._batch(ids), 1)
        return surfaces(self.model, energies, thought.trace.kept[:, thought.places[-1].sample])

    def _batch(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.model.token_embedding.weight.device)  # (1, T)

    def _places(self, ids: Sequence[int], logits: Tensor, best: Tensor, found: Trace) -> Iterator[Place]:
        """Yield what was thought, by logits (T, V), after each of T ids."""
        probabilities = torch.softmax(logits, -1)  # (T, V)
        likeliest = probabilities[:, : self.num_words].max(-1)
        for index, sample in enumerate(best.tolist()):
            known = ids[index + 1] if index + 1 < len(ids) else None
            yield Place(
                None if known is None else self.tokenizer.decode([known]),
                None if known is None else float(probabilities[index, known]),
                self.tokenizer.decode([int(likeliest.indices[index])]),
                float(likeliest.values[index]),
                sample,
                found.energies[:, sample, index].tolist(),
            )


def perplexity(logits: Tensor, ids: Sequence[int]) -> float | None:
    """Compute the perplexity of ids from the second on, T - 1 of them, by logits (T, V); None for a single id."""
    if len(ids) < 2:
        return None
    following = torch.tensor(list(ids[1:]), device=logits.device)  # (T - 1,)
    total, count = summed_negative_log_likelihood(logits[:-1], following)
    return float((total / count).exp())
