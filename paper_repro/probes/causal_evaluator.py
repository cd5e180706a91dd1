"""Log-likelihoods and greedy continuations of any causal language model, in batches of similar length.

Legend: B sequences, T tokens, V vocabulary, P block length.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.tokenizers import Tokenizer
from paper_repro.metrics.likelihood import summed_negative_log_likelihood

Ids = tuple[int, ...]


class Evaluator:
    """Scores and continues token sequences with a model that maps ids (B, T), T <= P, to logits (B, T, V).

    Sequences are padded on the right; a context that does not fit is cropped from the left to the last P tokens.
    ``num_requests`` and ``num_cropped`` count the requests since construction.

    Args:
        model: in evaluation mode; P is its ``block_length``.
        tokenizer: whose ids the model was trained on; V may exceed its size by padding, the surplus is never generated.
        batch_tokens: the most tokens, padding included, that one forward pass sees (one sequence may exceed it).
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, batch_tokens: int = 8192) -> None:
        self.model, self.tokenizer, self.batch_tokens = model, tokenizer, batch_tokens
        self.block_length: int = model.block_length  # type: ignore[assignment]
        self.num_requests = self.num_cropped = 0

    def pair(self, context: str, continuation: str) -> tuple[Ids, Ids]:
        """Return the ids of a context and of the continuation, both cut from the ids of the joined text.

        Blanks at the end of the context go to the continuation; an empty context becomes the end-of-text token.
        """
        stripped = context.rstrip()
        continuation, context = context[len(stripped) :] + continuation, stripped
        if not context:
            return (self._start(),), tuple(self.tokenizer.encode(continuation))
        first, whole = self.tokenizer.encode(context), self.tokenizer.encode(context + continuation)
        if len(whole) <= len(first):  # the continuation was merged into the context's last token
            return tuple(first), tuple(self.tokenizer.encode(continuation))
        return tuple(whole[: len(first)]), tuple(whole[len(first) :])

    def _start(self) -> int:
        """Return the token that stands before a text."""
        if self.tokenizer.end_of_text is None:
            raise UsageError("found an empty context and a tokenizer without end-of-text token: give some context")
        return self.tokenizer.end_of_text

    def log_likelihoods(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[tuple[float, bool]]:
        """Return ``sum_t log p(continuation_t | what precedes it)`` in nats for each (context, continuation), and
        whether each of its tokens is the likeliest.  Pairs that share all but the last token share a forward pass.

        Raises:
            UsageError: a continuation of more than P tokens.
        """
        scores = [(0.0, True)] * len(pairs)
        groups: dict[Ids, list[int]] = {}
        for index, (context, continuation) in enumerate(pairs):
            self.num_requests += 1
            if not continuation:
                continue
            if len(continuation) > self.block_length:
                raise UsageError(
                    f"a continuation of {len(continuation)} tokens does not fit into the model's context of "
                    f"{self.block_length}"
                )
            groups.setdefault((*context, *continuation[:-1])[-self.block_length :], []).append(index)
            self.num_cropped += len(context) + len(continuation) - 1 > self.block_length
        sequences = sorted(groups, key=len)
        for chunk in self._chunks([len(ids) for ids in sequences]):
            inputs = sequences[chunk]
            logits = self._logits(inputs)
            for row, ids in enumerate(inputs):
                for index in groups[ids]:
                    target = torch.tensor(pairs[index][1], device=logits.device)  # (T,)
                    own = logits[row, len(ids) - len(target) : len(ids)]  # (T, V)
                    total, _ = summed_negative_log_likelihood(own, target)
                    scores[index] = -float(total), bool((own.argmax(dim=-1) == target).all())
        return scores

    def continuations(self, prompts: Sequence[str], num_tokens: int) -> list[str]:
        """Return the greedy continuation of ``num_tokens`` tokens of each prompt, each predicted from the last P."""
        rows = [self.tokenizer.encode(prompt) or [self._start()] for prompt in prompts]
        lengths = [len(row) for row in rows]
        self.num_requests += len(rows)
        self.num_cropped += sum(length > self.block_length for length in lengths)
        by_length = sorted(rows, key=len)
        for chunk in self._chunks([len(row) + num_tokens for row in by_length]):
            for _ in range(num_tokens):
                inputs = [tuple(row[-self.block_length :]) for row in by_length[chunk]]
                last = torch.tensor([len(ids) - 1 for ids in inputs])
                logits = self._logits(inputs)[torch.arange(len(inputs)), last, : self.tokenizer.vocabulary_size]
                for row, token in zip(by_length[chunk], logits.argmax(dim=-1).tolist(), strict=True):
                    row.append(token)
        return [self.tokenizer.decode(row[length:]) for row, length in zip(rows, lengths, strict=True)]

    @torch.no_grad()
    def _logits(self, inputs: Sequence[Ids]) -> Tensor:
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        ids = nn.utils.rnn.pad_sequence([torch.tensor(own, dtype=torch.int64) for own in inputs], batch_first=True)
        logits: Tensor = self.model(ids.to(device))
        return logits

    def _chunks(self, lengths: Sequence[int]) -> Iterator[slice]:
        """Yield ranges of sequences of ascending lengths that fit into one batch."""
        first = 0
        for index, length in enumerate(lengths):
            if index > first and (index - first + 1) * min(length, self.block_length) > self.batch_tokens:
                yield slice(first, index)
                first = index
        if lengths:
            yield slice(first, len(lengths))
