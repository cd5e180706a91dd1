"""Cross-entropy and perplexity, from summed negative log-likelihoods and counts.

Every batch brings a sum and how many tokens it is the sum of, so the mean is weighted by tokens and only
then exponentiated.  The mean of per-batch perplexities that EBT's logger prints is another number: above this one for
batches of equal size, by convexity.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from paper_repro.base.identity import IGNORED
from paper_repro.metrics.pooled import PooledMean


def num_counted(targets: Tensor) -> Tensor:
    """Return how many targets are not ``IGNORED``, int64, ()."""
    return (targets != IGNORED).sum()


def counted_sum(losses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum, float64, of losses (...) of targets (...) that are not ``IGNORED``, and how many these are."""
    return losses.where(targets != IGNORED, 0).sum(dtype=torch.float64), num_counted(targets)


def or_zero(mean: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the targets that are not ``IGNORED``, or 0 if there is none, whose mean is nan."""
    return torch.where((targets != IGNORED).any(), mean, 0)


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of -log softmax(logits)[target], in nats, over the targets that are not ``IGNORED``, or 0.

    Shape: logits (..., V), targets (...), int64.
    """
    return or_zero(cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED), targets)


def summed_negative_log_likelihood(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``-sum_t log softmax(logits_t)[target_t]`` in nats, and the number of targets that are not ``IGNORED``.

    The log-softmax is taken in float32 (float64 for float64 logits), the sum in float64.

    Shape: logits (..., V), target (...), integer.
    """
    precise = logits if logits.dtype is torch.float64 else logits.float()
    losses = cross_entropy(precise.flatten(0, -2), target.flatten().long(), ignore_index=IGNORED, reduction="none")
    return losses.sum(dtype=torch.float64), num_counted(target)


class CrossEntropy(PooledMean):
    """Mean negative log-likelihood per token: ``sum_nll / num_tokens`` over everything seen.  Unit: nat/token.

    Shape: ``sum_nll`` (nats) and ``num_tokens`` are two scalars for a batch, or two (B,) tensors with a row per text.
    NaN and inf pass through: a diverged run is a result.
    """

    counted = "tokens"

    def update(self, sum_nll: Tensor | float, num_tokens: Tensor | int) -> None:
        total = torch.as_tensor(sum_nll, dtype=torch.float64, device=self.pooled_sum.device).sum()
        self._add(total, torch.as_tensor(num_tokens, device=self.count.device).sum())


class Perplexity(CrossEntropy):
    """``exp(sum_nll / num_tokens)`` over everything seen; ``inf`` above 709 nats per token."""

    def _value(self, mean: Tensor) -> Tensor:
        return mean.exp()
