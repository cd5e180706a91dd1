"""Statistics of order: rank correlation, and how well a score tells two groups apart."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CONFIDENCE = 0.95


class RankCorrelation(NamedTuple):
    """Spearman's coefficient with a percentile bootstrap interval of 95 % over groups."""

    value: float
    low: float
    high: float


def rank_correlation(left: Tensor, right: Tensor) -> float:
    """Return Spearman's coefficient of two series of equal length, ties with their mean rank."""
    from scipy.stats import spearmanr

    return float(spearmanr(left.cpu().numpy(), right.cpu().numpy()).statistic)


def grouped_rank_correlation(
    left: Sequence[Tensor], right: Sequence[Tensor], seed: int, resamples: int = 1000
) -> RankCorrelation:
    """Return Spearman's coefficient of all values, with an interval that resamples whole groups, which are independent.

    Args:
        left, right: the values of each group, as many on both sides.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(resamples):
        chosen = torch.randint(len(left), (len(left),), generator=generator).tolist()
        drawn.append(rank_correlation(*(torch.cat([side[group] for group in chosen]) for side in (left, right))))
    outside = (1 - CONFIDENCE) / 2
    ends = torch.tensor([outside, 1 - outside], dtype=torch.float64)
    low, high = torch.tensor(drawn, dtype=torch.float64).quantile(ends)
    return RankCorrelation(rank_correlation(torch.cat(list(left)), torch.cat(list(right))), float(low), float(high))


def auroc(negatives: Tensor, positives: Tensor) -> float:
    """Return how often a score is higher for a positive than for a negative, ties counted as halves; NaN if one is."""
    from scipy.stats import mannwhitneyu

    pairs_in_order = mannwhitneyu(positives.cpu().numpy(), negatives.cpu().numpy(), method="asymptotic").statistic
    return float(pairs_in_order) / (len(positives) * len(negatives))
