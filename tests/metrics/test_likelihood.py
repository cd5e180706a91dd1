import math

import pytest
import torch
from torchmetrics.text import Perplexity as TorchmetricsPerplexity

from paper_repro.base.identity import IGNORED
from paper_repro.metrics.likelihood import (
    Perplexity,
    counted_sum,
    mean_cross_entropy,
    summed_negative_log_likelihood,
)


def test_tokens_weigh_before_the_exponential():
    metric = Perplexity()
    metric.update(3 * math.log(2), 3)
    metric.update(1 * math.log(512), 1)
    assert metric.compute().item() == pytest.approx(2.0 ** ((3 * 1 + 9) / 4), rel=1e-14)
    assert metric.compute().item() < (2 + 512) / 2


def test_agrees_with_torchmetrics_on_masked_logits():
    metric, reference = Perplexity(), TorchmetricsPerplexity(ignore_index=IGNORED).set_dtype(torch.float64)
    generator = torch.Generator().manual_seed(0)
    for rows, masked in ((2, 0.5), (5, 0.0), (1, 0.7)):
        logits = 3 * torch.randn(rows, 17, 11, generator=generator, dtype=torch.float64)
        target = torch.randint(11, (rows, 17), generator=generator)
        target[torch.rand(rows, 17, generator=generator) < masked] = IGNORED
        found = summed_negative_log_likelihood(logits, target)
        metric.update(*found)
        reference.update(logits, target)
        losses = torch.nn.functional.cross_entropy(logits.mT, target, reduction="none")
        assert counted_sum(losses, target) == (pytest.approx(float(found[0])), found[1])
        assert float(mean_cross_entropy(logits, target)) == pytest.approx(float(found[0]) / found[1])
    # torchmetrics goes through probabilities in float64; 136 terms and an exponential
    torch.testing.assert_close(metric.compute(), reference.compute(), rtol=1e-13, atol=0)
    assert float(mean_cross_entropy(logits, torch.full_like(target, IGNORED))) == 0


def test_half_precision_logits_are_scored_in_float32():
    logits = torch.randn(4, 9, 100, generator=torch.Generator().manual_seed(1)).bfloat16()
    target = torch.arange(36).reshape(4, 9)
    nll, num_tokens = summed_negative_log_likelihood(logits, target)
    exact, _ = summed_negative_log_likelihood(logits.double(), target)
    assert num_tokens == 36
    assert nll.dtype is torch.float64
    # float32 rounding 6e-8 of each term; bfloat16 would be off by 4e-3
    torch.testing.assert_close(nll, exact, rtol=1e-6, atol=0)
