"""Unigram and bigram counts as language models: trivial baselines of trained models.

Letters: V token ids, N pairs of a token and the next.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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
    following: Tensor
    """c(y), (V,), float64."""
    previous: Tensor
    """c(x), (V,), float64."""
    pairs: Tensor
    """Each pair that was seen, as x V + y, in rising order."""
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
        wanted = previous * self.vocabulary_size + following
        places = torch.searchsorted(self.pairs, wanted).clamp(max=len(self.pairs) - 1)
        counts = torch.where(self.pairs[places] == wanted, self.pair_counts[places], 0)
        seen = self.previous[previous]
        return torch.where(seen > 0, counts / seen.clamp(min=1), self.unigram(following))

    def bigram(self, previous: Tensor, following: Tensor, weight: float) -> Tensor:
        """Return p(y | x), (N,)."""
        return weight * self.relative(previous, following) + (1 - weight) * self.unigram(following)

    def best_weight(self, previous: Tensor, following: Tensor) -> float:
        """Return the w in [0, 1] with the least cross-entropy on other pairs than those that were counted.

        The cross-entropy is convex in w, so halving the interval by the sign of its slope finds it.
        """
        relative, unigram = self.relative(previous, following), self.unigram(following)
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            falls = bool(((relative - unigram) / (middle * relative + (1 - middle) * unigram)).sum() > 0)
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


def cross_entropy(probabilities: Tensor) -> float:
    """Return the mean of ``-log p``, in nats per token."""
    return float(-probabilities.log().mean())
