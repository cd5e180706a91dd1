"""Cross-entropy, perplexity and bits per byte, from summed negative log-likelihoods and counts.

Every batch brings a sum and how many tokens (or bytes) it is the sum of, so the mean is weighted by tokens and only
then exponentiated.  The mean of per-batch perplexities that EBT's logger prints is another number: above this one for
batches of equal size, by convexity.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from paper_repro.base.identity import IGNORED
from paper_repro.metrics import quantities
from paper_repro.metrics.pooled import PooledMean
from paper_repro.metrics.quantities import Quantity

_ROUNDING_PER_TOKEN = 1e-3
"""Nats.  ``logsumexp - logit`` of a certain token may come out below zero by rounding, a float32 logit of size 1000 by
1e-4; a log-likelihood given with the wrong sign is below zero by far more."""


def num_counted(targets: Tensor) -> Tensor:
    """Return how many targets are not ``IGNORED``, int64, ()."""
    return (targets != IGNORED).sum()


def counted_sum(losses: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Return what ``update`` of the metrics below takes, of the losses of targets that are not ``IGNORED``.

    Shape: losses and targets (...); returns a float64 scalar and the count.
    """
    return losses.where(targets != IGNORED, 0).sum(dtype=torch.float64), int(num_counted(targets))


def or_zero(mean: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the targets that are not ``IGNORED``, or 0 if there is none, whose mean is nan."""
    return torch.where((targets != IGNORED).any(), mean, 0)


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of -log softmax(logits)[target], in nats, over the targets that are not ``IGNORED``; 0 if there
    is none.

    Shape: logits (..., V), targets (...), int64.
    """
    return or_zero(cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED), targets)


def summed_negative_log_likelihood(logits: Tensor, target: Tensor, *, ignore_index: int = -100) -> tuple[Tensor, int]:
    """Return what ``update`` of the metrics below takes: ``-sum_t log softmax(logits_t)[target_t]`` in nats, and the
    count.

    The log-softmax is taken in float32 (float64 for float64 logits), the sum in float64.

    Shape: logits (..., V), target (...), integer.  Returns a float64 scalar and the number of targets that are not
    ``ignore_index``.

    Raises:
        TypeError: logits that are not floating point or targets that are not integer.
        ValueError: shapes that do not match, a target outside [0, V), or not one target that counts.
    """
    if not logits.is_floating_point() or target.is_floating_point() or target.dtype is torch.bool:
        raise TypeError(f"found logits {logits.dtype} and target {target.dtype}, expected floating point and integer")
    if logits.shape[:-1] != target.shape or logits.ndim == 0:
        raise ValueError(
            f"logits have shape {tuple(logits.shape)}, target has {tuple(target.shape)}: expected (..., V) and (...)"
        )
    counted = target != ignore_index
    foreign = counted & ((target < 0) | (target >= logits.shape[-1]))
    if bool(foreign.any()):
        raise ValueError(
            f"target {int(target[foreign][0])} is outside [0, {logits.shape[-1]}): check the tokenizer against the "
            f"vocabulary of the logits, or mask it with ignore_index={ignore_index}"
        )
    num_tokens = int(counted.sum())
    if num_tokens == 0:
        raise ValueError(
            f"no token to score among {target.numel()} targets: all are ignore_index={ignore_index}; leave such a "
            "batch out"
        )
    precise = logits if logits.dtype is torch.float64 else logits.float()
    losses = cross_entropy(
        precise.reshape(-1, logits.shape[-1]), target.reshape(-1).long(), ignore_index=ignore_index, reduction="none"
    )
    return losses.sum(dtype=torch.float64), num_tokens


class _MeanNegativeLogLikelihood(PooledMean):
    def _add_texts(self, sum_nll: Tensor | float, count: Tensor | int) -> None:
        nll = torch.as_tensor(sum_nll, dtype=torch.float64, device=self.pooled_sum.device)
        counts = torch.as_tensor(count, device=self.count.device)
        if counts.is_floating_point() or counts.is_complex() or counts.dtype is torch.bool:
            raise TypeError(
                f"the number of {self.counted} is {counts.dtype}, expected an integer: give counts, not weights"
            )
        if nll.shape != counts.shape:
            raise ValueError(
                f"sum_nll has shape {tuple(nll.shape)}, the number of {self.counted} has {tuple(counts.shape)}: "
                "give one count for each sum"
            )
        if nll.numel() == 0:
            raise ValueError(f"no text in this update, shape {tuple(nll.shape)}: leave the empty batch out")
        if bool((counts < 1).any()):
            raise ValueError(
                f"a text of {int(counts.min())} {self.counted}, expected at least 1: leave out texts that hold none"
            )
        if bool((nll < -_ROUNDING_PER_TOKEN * counts).any()):
            raise ValueError(
                f"sum_nll is {float(nll.min()):g} nats, expected none below 0: give minus the log-likelihood"
            )
        self._add(nll.sum(), counts.sum())


class CrossEntropy(_MeanNegativeLogLikelihood):
    """Mean negative log-likelihood per token: ``sum_nll / num_tokens`` over everything seen.  Unit: nat/token.

    Shape: ``sum_nll`` (nats) and ``num_tokens`` are two scalars for a batch, or two (B,) tensors with a row per text.
    Checking them waits for the device.  NaN and inf pass through: a diverged run is a result.

    Raises:
        TypeError: counts that are not integer.
        ValueError: a text of no tokens, a negative count, a negative sum, shapes that differ, an empty batch, or
            ``compute`` before any ``update``.
    """

    quantity: ClassVar[Quantity] = quantities.CROSS_ENTROPY
    counted = "tokens"
    higher_is_better = quantity.higher_is_better

    def update(self, sum_nll: Tensor | float, num_tokens: Tensor | int) -> None:
        self._add_texts(sum_nll, num_tokens)

    def compute(self) -> Tensor:
        return self._mean()


class Perplexity(CrossEntropy):
    """``exp(sum_nll / num_tokens)`` over everything seen: weighted by tokens, then exponentiated.

    Dimensionless; ``inf`` above 709 nats per token.  Input and errors as for ``CrossEntropy``.
    """

    quantity: ClassVar[Quantity] = quantities.PERPLEXITY
    higher_is_better = quantity.higher_is_better

    def compute(self) -> Tensor:
        return self._mean().exp()


class BitsPerByte(_MeanNegativeLogLikelihood):
    """``sum_nll / (num_bytes ln 2)`` over everything seen: comparable between tokenizers.  Unit: bit/byte.

    Shape: ``sum_nll`` (nats) and ``num_bytes`` (of the UTF-8 text that the scored tokens decode to) are two scalars for
    a batch, or two (B,) tensors with a row per text.  Errors as for ``CrossEntropy``, with bytes for tokens.
    """

    quantity: ClassVar[Quantity] = quantities.BITS_PER_BYTE
    counted = "bytes"
    higher_is_better = quantity.higher_is_better

    def update(self, sum_nll: Tensor | float, num_bytes: Tensor | int) -> None:
        self._add_texts(sum_nll, num_bytes)

    def compute(self) -> Tensor:
        return self._mean() / math.log(2)
