"""Counted tokens as language models: trivial baselines of trained models.

Letters: V token ids; n tokens, the last of which follows the others, its context; N such groups.  A text is given as n
tensors (N,), one for each place in the group.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

NONE = -1
"""In the place of a token before the first of a text."""
HALVINGS = 50


class Counts:
    """How often each token follows each context of n - 1 tokens.

    ``p(z | context) = w c(context, z) / c(context) + (1 - w) p(z | shorter context)``, the interpolation of Jelinek and
    Mercer; after a context that was never seen or that holds ``NONE``, ``p(z | context) = p(z | shorter context)``.
    Without a context ``p(z) = (c(z) + 1) / (N + V)``.

    Args:
        tokens: of the text to count, n tensors (N,), int64.
        vocabulary_size: V.
        weights: w of two tokens, of three, ..., of n.
    """

    def __init__(self, tokens: Sequence[Tensor], vocabulary_size: int, weights: Sequence[float]) -> None:
        self.vocabulary_size, self.weights, self.length = vocabulary_size, weights, len(tokens)
        known = functools.reduce(torch.logical_and, [column != NONE for column in tokens])
        whole = [column[known] for column in tokens]
        self.groups, self.group_counts = self._number(whole).unique(return_counts=True)
        if self.length > 1:
            self.contexts, self.context_counts = self._number(whole[:-1]).unique(return_counts=True)
            self.shorter = Counts(tokens[1:], vocabulary_size, weights)

    @classmethod
    def fitted(cls, kept: Sequence[Tensor], held_out: Sequence[Tensor], vocabulary_size: int) -> "Counts":
        """Count two parts of a text; each weight is the best on the second part, where the first alone is counted."""
        weights: list[float] = []
        for start in reversed(range(len(kept) - 1)):
            counts = cls(kept[start:], vocabulary_size, weights)
            weights.append(best_weight(*counts.parts(held_out[start:])))
        return cls([torch.cat(parts) for parts in zip(kept, held_out, strict=True)], vocabulary_size, weights)

    def probabilities(self, tokens: Sequence[Tensor]) -> Tensor:
        """Return p(z | context), (N,), float64."""
        if self.length == 1:
            counts = _look_up(self.groups, self.group_counts, tokens[0])
            return (counts + 1) / (float(self.group_counts.sum()) + self.vocabulary_size)
        relative, shorter = self.parts(tokens)
        weight = self.weights[self.length - 2]
        return weight * relative + (1 - weight) * shorter

    def parts(self, tokens: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return c(context, z) / c(context), which is p(z | shorter context) where c(context) is 0, and the latter."""
        known = functools.reduce(torch.logical_and, [column != NONE for column in tokens])
        counts, seen = (
            _look_up(numbers, found, torch.where(known, self._number(columns), NONE))
            for numbers, found, columns in (
                (self.groups, self.group_counts, tokens),
                (self.contexts, self.context_counts, tokens[:-1]),
            )
        )
        shorter = self.shorter.probabilities(tokens[1:])
        return torch.where(seen > 0, counts / seen.clamp(min=1), shorter), shorter

    def _number(self, columns: Sequence[Tensor]) -> Tensor:
        """Return one number for each row of several tokens, (N,)."""
        return functools.reduce(lambda number, column: number * self.vocabulary_size + column, columns)


def best_weight(first: Tensor, second: Tensor) -> float:
    """Return the w in [0, 1] with the least mean of ``-log(w first + (1 - w) second)``, probabilities (N,)."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):  # the mean is convex in w
        middle = (low + high) / 2
        falls = bool(((first - second) / (middle * first + (1 - middle) * second)).sum() > 0)
        low, high = (middle, high) if falls else (low, middle)
    return (low + high) / 2


def _look_up(numbers: Tensor, counts: Tensor, wanted: Tensor) -> Tensor:
    """Return the count of each wanted number, float64, 0 if it does not occur; ``numbers`` are in rising order."""
    places = torch.searchsorted(numbers, wanted).clamp(max=len(numbers) - 1)
    return torch.where(numbers[places] == wanted, counts[places], 0).double()


def cross_entropy(probabilities: Tensor) -> float:
    """Return the mean of ``-log p``, in nats per token."""
    return float(-probabilities.log().mean())
