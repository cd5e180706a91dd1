"""Log-likelihoods and greedy continuations of any causal language model, in batches of similar length.

Legend: B sequences, T tokens, V vocabulary, P block length.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.tokenizers import Tokenizer

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Score:
    """How a model takes a continuation."""

    log_likelihood: float
    """Nats, summed over the continuation's tokens."""
    greedy: bool
    """Whether each of its tokens is the likeliest."""


class Evaluator:
    """Scores and continues token sequences with a model that maps ids (B, T), T <= P, to logits (B, T, V).

    Sequences are padded on the right, which a causal model does not see; a context that does not fit is cropped from
    the left to the last P tokens.  The model is put into evaluation mode for each call, and gradients are off.

    Args:
        model: the model, on its device.
        tokenizer: whose ids the model was trained on; V may exceed its size by padding, the surplus is never generated.
        block_length: P; None takes ``model.block_length``.
        batch_tokens: the most tokens, padding included, that one forward pass sees (one sequence may exceed it).

    ``num_requests`` and ``num_cropped`` count what was asked since construction.

    Raises:
        ValueError: a size below one, or a model without ``block_length`` and none given.
    """

    def __init__(
        self, model: nn.Module, tokenizer: Tokenizer, block_length: int | None = None, batch_tokens: int = 8192
    ) -> None:
        found = getattr(model, "block_length", None) if block_length is None else block_length
        if found is None:
            raise ValueError(f"{type(model).__name__} has no block_length: give the most tokens that it sees at once")
        self.model, self.tokenizer = model, tokenizer
        self.block_length = at_least("block_length", found)
        self.batch_tokens = at_least("batch_tokens", batch_tokens)
        self.num_requests = self.num_cropped = 0

    def pair(self, context: str, continuation: str) -> tuple[Ids, Ids]:
        """Return the ids of a context and of the continuation, both cut from the ids of the joined text.

        Blanks at the end of the context go to the continuation, with which they are tokenised; an empty context becomes
        the end-of-text token.

        Raises:
            UsageError: an empty context, and a tokenizer without end-of-text token.
        """
        stripped = context.rstrip()
        continuation, context = context[len(stripped) :] + continuation, stripped
        if not context:
            return (self.start(),), tuple(self.tokenizer.encode(continuation))
        first, whole = self.tokenizer.encode(context), self.tokenizer.encode(context + continuation)
        if len(whole) <= len(first):  # the continuation was merged into the context's last token
            return tuple(first), tuple(self.tokenizer.encode(continuation))
        return tuple(whole[: len(first)]), tuple(whole[len(first) :])

    def start(self) -> int:
        """Return the token that stands before a text.

        Raises:
            UsageError: the tokenizer has none.
        """
        if self.tokenizer.end_of_text is None:
            raise UsageError(
                "found an empty context and a tokenizer without end-of-text token, expected a token to condition on: "
                "give a context of at least one character"
            )
        return self.tokenizer.end_of_text

    def log_likelihoods(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[Score]:
        """Return ``sum_t log p(continuation_t | what precedes it)`` for each (context, continuation), float32
        log-softmax.

        Pairs that share all but the last token share a forward pass.

        Raises:
            UsageError: an empty context, a continuation of more than P tokens, or a foreign vocabulary.
        """
        scores = [Score(0.0, True)] * len(pairs)
        groups: dict[Ids, list[int]] = {}
        for index, (context, continuation) in enumerate(pairs):
            self.num_requests += 1
            if not continuation:
                continue
            self._check(context, continuation)
            groups.setdefault(self._crop((*context, *continuation[:-1])), []).append(index)
            self.num_cropped += len(context) + len(continuation) - 1 > self.block_length
        with self._evaluating():
            for inputs in self._batches(list(groups)):
                logits = self._logits(inputs)
                for row, ids in enumerate(inputs):
                    for index in groups[ids]:
                        continuation = pairs[index][1]
                        scores[index] = _score(logits[row, len(ids) - len(continuation) : len(ids)], continuation)
        return scores

    def rolling_log_likelihoods(self, texts: Sequence[str]) -> list[float]:
        """Return the log-likelihood of whole texts, each token predicted once, after the end-of-text token.

        A text longer than P is cut into windows of P predictions; the last one is moved back so that it is full.

        Raises:
            UsageError: the tokenizer has no end-of-text token, or a foreign vocabulary.
        """
        pairs: list[tuple[Ids, Ids]] = []
        owners: list[int] = []
        for owner, text in enumerate(texts):
            ids = (self.start(), *self.tokenizer.encode(text))
            for first in range(1, len(ids), self.block_length):
                end = min(first + self.block_length, len(ids))
                pairs.append((ids[max(0, end - 1 - self.block_length) : first], ids[first:end]))
                owners.append(owner)
        totals = [0.0] * len(texts)
        for owner, score in zip(owners, self.log_likelihoods(pairs), strict=True):
            totals[owner] += score.log_likelihood
        return totals

    def continuations(
        self, prompts: Sequence[str], num_tokens: int, until: Sequence[str] = (), stop_at_end: bool = True
    ) -> list[str]:
        """Return greedy continuations of at most ``num_tokens`` tokens, without the prompt.

        Each ends before the first of ``until`` and, with ``stop_at_end``, before an end-of-text token.  The context
        slides: every token is predicted from the last P.

        Raises:
            UsageError: an empty prompt and a tokenizer without end-of-text token, or a foreign vocabulary.
        """
        at_least("num_tokens", num_tokens)
        starts = [tuple(self.tokenizer.encode(prompt)) or (self.start(),) for prompt in prompts]
        self.num_requests += len(starts)
        self.num_cropped += sum(len(ids) > self.block_length for ids in starts)
        texts = [""] * len(prompts)
        order = sorted(range(len(starts)), key=lambda index: len(starts[index]))
        with self._evaluating():
            for indices in self._chunks(order, [len(ids) + num_tokens for ids in starts]):
                rows = [list(starts[index]) for index in indices]
                for index, text in zip(indices, self._greedy(rows, num_tokens, until, stop_at_end), strict=True):
                    texts[index] = text
        return texts

    def _greedy(self, rows: list[list[int]], num_tokens: int, until: Sequence[str], stop_at_end: bool) -> list[str]:
        prompts = [len(row) for row in rows]
        texts = [""] * len(rows)
        active = list(range(len(rows)))
        for _ in range(num_tokens):
            inputs = [self._crop(tuple(rows[index])) for index in active]
            last = torch.tensor([len(ids) - 1 for ids in inputs])
            logits = self._logits(inputs)[torch.arange(len(inputs)), last, : self.tokenizer.vocabulary_size]
            for index, token in zip(list(active), logits.argmax(dim=-1).tolist(), strict=True):
                if stop_at_end and token == self.tokenizer.end_of_text:
                    active.remove(index)
                    continue
                rows[index].append(token)
                texts[index], stopped = _before(self.tokenizer.decode(rows[index][prompts[index] :]), until)
                if stopped:
                    active.remove(index)
            if not active:
                break
        return texts

    def _logits(self, inputs: Sequence[Ids]) -> Tensor:
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        ids = torch.zeros(len(inputs), max(map(len, inputs)), dtype=torch.int64)
        for row, own in enumerate(inputs):
            ids[row, : len(own)] = torch.tensor(own)
        logits: Tensor = self.model(ids.to(device))
        if logits.shape[-1] < self.tokenizer.vocabulary_size:
            raise UsageError(
                f"the model has a vocabulary of {logits.shape[-1]}, the tokenizer of {self.tokenizer.vocabulary_size}: "
                "evaluate with the tokenizer of the model's training data"
            )
        return logits

    def _crop(self, ids: Ids) -> Ids:
        return ids[-self.block_length :]

    def _check(self, context: Ids, continuation: Ids) -> None:
        if not context:
            raise UsageError("found an empty context, expected at least one token to condition on")
        if len(continuation) > self.block_length:
            raise UsageError(
                f"a continuation of {len(continuation)} tokens does not fit into the model's context of "
                f"{self.block_length}: score it as a rolling log-likelihood"
            )

    def _batches(self, sequences: Sequence[Ids]) -> Iterator[list[Ids]]:
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        for indices in self._chunks(order, [len(ids) for ids in sequences]):
            yield [sequences[index] for index in indices]

    def _chunks(self, order: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
        chunk: list[int] = []
        for index in order:  # ascending, so that the latest is the longest
            if chunk and (len(chunk) + 1) * min(lengths[index], self.block_length) > self.batch_tokens:
                yield chunk
                chunk = []
            chunk.append(index)
        if chunk:
            yield chunk

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(training)


def _score(logits: Tensor, continuation: Ids) -> Score:
    """Score logits (T, V) at the positions that predict the T tokens of the continuation."""
    target = torch.tensor(continuation, device=logits.device)
    precise = logits if logits.dtype is torch.float64 else logits.float()
    chosen = precise.log_softmax(dim=-1).gather(-1, target[:, None])
    return Score(float(chosen.sum(dtype=torch.float64)), bool((precise.argmax(dim=-1) == target).all()))


def _before(text: str, until: Sequence[str]) -> tuple[str, bool]:
    places = [text.find(stop) for stop in until if stop and stop in text]
    return (text[: min(places)], True) if places else (text, False)
