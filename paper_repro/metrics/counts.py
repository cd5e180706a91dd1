"""Unigram, bigram and trigram counts as language models: trivial baselines of trained models.

Letters: V token ids, N tokens with those before them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

NONE = -1
"""In the place of the token before the first of a text."""
HALVINGS = 50
DENSE = 2**24
"""Numbers below this are counted in a table of all of them, which takes a fifth of the time of sorting them."""


@dataclass(frozen=True)
class BigramCounts:
    """How often each token, and each pair of neighbours, stands in a text.

    ``p(y) = (c(y) + delta) / (N + delta V)`` and ``p(y | x) = w c(x, y) / c(x) + (1 - w) p(y)``, the interpolation of
    Jelinek and Mercer; after an x that was never seen, ``p(y | x) = p(y)``.
    """

    vocabulary_size: int
    following: Tensor  # c(y), (V,), float64
    previous: Tensor  # c(x), (V,), float64
    pairs: Tensor  # each pair that was seen, as x V + y, in rising order
    pair_counts: Tensor
    delta: float = 1.0

    @classmethod
    def of(cls, previous: Tensor, following: Tensor, vocabulary_size: int) -> "BigramCounts":
        """Count the N pairs of a text, x in ``previous`` and y in ``following``, (N,), int64, both below V."""
        after, before = (ids.bincount(minlength=vocabulary_size).double() for ids in (following, previous))
        pairs, pair_counts = _tally(previous * vocabulary_size + following, vocabulary_size**2)
        return cls(vocabulary_size, after, before, pairs, pair_counts)

    def unigram(self, following: Tensor) -> Tensor:
        """Return p(y), (N,)."""
        total = self.following.sum() + self.delta * self.vocabulary_size
        return (self.following[following] + self.delta) / total

    def relative(self, previous: Tensor, following: Tensor) -> Tensor:
        """Return c(x, y) / c(x), (N,), and p(y) where c(x) is 0."""
        counts = _look_up(self.pairs, self.pair_counts, previous * self.vocabulary_size + following)
        seen = self.previous[previous]
        return torch.where(seen > 0, counts / seen.clamp(min=1), self.unigram(following))

    def bigram(self, previous: Tensor, following: Tensor, weight: float) -> Tensor:
        """Return p(y | x), (N,)."""
        return weight * self.relative(previous, following) + (1 - weight) * self.unigram(following)

    def best_weight(self, previous: Tensor, following: Tensor) -> float:
        """Return the w in [0, 1] with the least cross-entropy on other pairs than those that were counted."""
        return best_weight(self.relative(previous, following), self.unigram(following))


@dataclass(frozen=True)
class TrigramCounts:
    """How often each token follows each pair of neighbours.

    ``p(z | x, y) = w c(x, y, z) / c(x, y) + (1 - w) p(z | y)``; where x is no token (``NONE``, at the start of a text)
    or the pair was never seen, ``p(z | x, y) = p(z | y)``.
    """

    bigram: BigramCounts
    bigram_weight: float
    contexts: Tensor  # each pair x, y that was followed by a token, as x V + y, in rising order
    context_counts: Tensor
    triples: Tensor  # each x, y, z that was seen, as (x V + y) V + z, in rising order
    triple_counts: Tensor

    @classmethod
    def of(
        cls, before: Tensor, previous: Tensor, following: Tensor, vocabulary_size: int, bigram_weight: float
    ) -> "TrigramCounts":
        """Count the N tokens of a text, z in ``following``, y in ``previous`` and x in ``before``, (N,), int64."""
        known = before != NONE
        contexts = before[known] * vocabulary_size + previous[known]
        return cls(
            BigramCounts.of(previous, following, vocabulary_size),
            bigram_weight,
            *_tally(contexts, vocabulary_size**2),
            *_tally(contexts * vocabulary_size + following[known], vocabulary_size**3),
        )

    def trigram(self, before: Tensor, previous: Tensor, following: Tensor, weight: float) -> Tensor:
        """Return p(z | x, y), (N,)."""
        relative, pairs = self._parts(before, previous, following)
        return weight * relative + (1 - weight) * pairs

    def best_weight(self, before: Tensor, previous: Tensor, following: Tensor) -> float:
        """Return the w in [0, 1] with the least cross-entropy on other tokens than those that were counted."""
        return best_weight(*self._parts(before, previous, following))

    def _parts(self, before: Tensor, previous: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        """Return c(x, y, z) / c(x, y), which is p(z | y) where c(x, y) is 0, and p(z | y), (N,) each."""
        size = self.bigram.vocabulary_size
        contexts = torch.where(before == NONE, NONE, before * size + previous)
        seen = _look_up(self.contexts, self.context_counts, contexts)
        counts = _look_up(self.triples, self.triple_counts, contexts * size + following)
        pairs = self.bigram.bigram(previous, following, self.bigram_weight)
        return torch.where(seen > 0, counts / seen.clamp(min=1), pairs), pairs


def best_weight(first: Tensor, second: Tensor) -> float:
    """Return the w in [0, 1] with the least mean of ``-log(w first + (1 - w) second)``, probabilities (N,)."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):  # the mean is convex in w
        middle = (low + high) / 2
        falls = bool(((first - second) / (middle * first + (1 - middle) * second)).sum() > 0)
        low, high = (middle, high) if falls else (low, middle)
    return (low + high) / 2


def _tally(numbers: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Return the numbers that occur, of 0 to below ``end``, in rising order, and how often each does."""
    if end > DENSE:
        found: tuple[Tensor, Tensor] = torch.unique(numbers, return_counts=True)
        return found
    counts = numbers.bincount(minlength=end)
    (occurring,) = counts.nonzero(as_tuple=True)
    return occurring, counts[occurring]


def _look_up(numbers: Tensor, counts: Tensor, wanted: Tensor) -> Tensor:
    """Return the count of each wanted number, 0 for those that do not occur; ``numbers`` are in rising order."""
    places = torch.searchsorted(numbers, wanted).clamp(max=len(numbers) - 1)
    return torch.where(numbers[places] == wanted, counts[places], 0)


def cross_entropy(probabilities: Tensor) -> float:
    """Return the mean of ``-log p``, in nats per token."""
    return float(-probabilities.log().mean())
