import math

import pytest
import torch
from torchmetrics.text import Perplexity as TorchmetricsPerplexity

from paper_repro.metrics.likelihood import BitsPerByte, CrossEntropy, Perplexity, summed_negative_log_likelihood

ALL = pytest.mark.parametrize("metric_class", [CrossEntropy, Perplexity, BitsPerByte])


def test_uniform_model_has_the_perplexity_of_its_vocabulary():
    metric = Perplexity()
    metric.update(*summed_negative_log_likelihood(torch.zeros(3, 5, 50, dtype=torch.float64), torch.ones(3, 5).long()))
    # log then exp of 50 in float64: some 4 roundings of 2^-53, amplified by log 50 = 3.9
    assert metric.compute().item() == pytest.approx(50, rel=2e-15)


def test_uniform_model_of_bytes_needs_eight_bits():
    metric = BitsPerByte()
    metric.update(100 * math.log(256), 100)
    assert metric.compute().item() == pytest.approx(8, rel=1e-15)


def test_tokens_weigh_before_the_exponential():
    metric = Perplexity()
    metric.update(3 * math.log(2), 3)
    metric.update(1 * math.log(512), 1)
    assert metric.compute().item() == pytest.approx(2.0 ** ((3 * 1 + 9) / 4), rel=1e-14)
    assert metric.compute().item() < (2 + 512) / 2


@ALL
def test_batches_equal_one_tensor_of_texts(metric_class):
    nll, counts = torch.tensor([4.0, 1.5, 80.0], dtype=torch.float64), torch.tensor([3, 1, 40])
    one_by_one, at_once = metric_class(), metric_class()
    for value, count in zip(nll, counts, strict=True):
        one_by_one.update(value, count)
    at_once.update(nll, counts)
    assert one_by_one.compute().item() == at_once.compute().item()  # sums of these numbers are exact


def test_the_three_agree_on_one_text():
    cross_entropy, perplexity, bits = CrossEntropy(), Perplexity(), BitsPerByte()
    for metric, count in ((cross_entropy, 5), (perplexity, 5), (bits, 20)):
        metric.update(12.5, count)
    assert cross_entropy.compute().item() == 2.5
    assert perplexity.compute().item() == pytest.approx(math.exp(2.5), rel=1e-15)
    assert bits.compute().item() == pytest.approx(2.5 * 5 / 20 / math.log(2), rel=1e-15)


@pytest.mark.parametrize("ignore_index", [-100, 0])
def test_agrees_with_torchmetrics_on_masked_logits(ignore_index):
    metric, reference = Perplexity(), TorchmetricsPerplexity(ignore_index=ignore_index).set_dtype(torch.float64)
    generator = torch.Generator().manual_seed(0)
    for rows, masked in ((2, 0.5), (5, 0.0), (1, 0.7)):
        logits = 3 * torch.randn(rows, 17, 11, generator=generator, dtype=torch.float64)
        target = torch.randint(1, 11, (rows, 17), generator=generator)
        target[torch.rand(rows, 17, generator=generator) < masked] = ignore_index
        metric.update(*summed_negative_log_likelihood(logits, target, ignore_index=ignore_index))
        reference.update(logits, target)
    # torchmetrics goes through probabilities in float64; 136 terms and an exponential
    torch.testing.assert_close(metric.compute(), reference.compute(), rtol=1e-13, atol=0)


def test_half_precision_logits_are_scored_in_float32():
    logits = torch.randn(4, 9, 100, generator=torch.Generator().manual_seed(1)).bfloat16()
    target = torch.arange(36).reshape(4, 9)
    nll, num_tokens = summed_negative_log_likelihood(logits, target)
    exact, _ = summed_negative_log_likelihood(logits.double(), target)
    assert num_tokens == 36
    assert nll.dtype is torch.float64
    # float32 rounding 6e-8 of each term; bfloat16 would be off by 4e-3
    torch.testing.assert_close(nll, exact, rtol=1e-6, atol=0)


def test_gradient_flows_through_the_batch_value():
    logits = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    CrossEntropy()(*summed_negative_log_likelihood(logits, torch.tensor([2]))).backward()
    expected = torch.full((1, 4), 0.25, dtype=torch.float64)
    expected[0, 2] -= 1
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-15)


@ALL
def test_forward_returns_the_batch_and_accumulates_and_reset_forgets(metric_class):
    once = metric_class()
    once.update(6.0, 4)
    metric = metric_class()
    metric(2.0, 1)
    assert metric(6.0, 4).item() == once.compute().item()
    once.update(2.0, 1)
    assert metric.compute().item() == once.compute().item()
    metric.reset()
    once.reset()
    metric.update(1.0, 2)
    once.update(1.0, 2)
    assert metric.compute().item() == once.compute().item()


def test_count_is_exact_beyond_what_float32_can_count():
    metric = CrossEntropy()
    metric.update(0.0, 2**24)
    metric.update(2.0**24 + 1, 1)
    assert metric.compute().item() == 1.0


@pytest.mark.parametrize("nll", [math.nan, math.inf])
def test_diverged_model_is_a_result(nll):
    metric = Perplexity()
    metric.update(nll, 3)
    assert str(metric.compute().item()) == str(nll)


@ALL
@pytest.mark.parametrize("count", [0, -3, torch.tensor(0)])
def test_text_of_no_tokens_and_negative_counts_are_refused(metric_class, count):
    with pytest.raises(ValueError, match=rf"a text of {int(count)} (tokens|bytes), expected at least 1"):
        metric_class().update(1.0, count)


@ALL
def test_an_empty_text_among_others_is_refused_and_leaves_no_trace(metric_class):
    metric, clean = metric_class(), metric_class()
    metric.update(3.0, 2)
    clean.update(3.0, 2)
    with pytest.raises(ValueError, match="a text of 0"):
        metric.update(torch.tensor([1.0, 0.0]), torch.tensor([5, 0]))
    assert metric.compute().item() == clean.compute().item()


@ALL
def test_log_likelihood_of_the_wrong_sign_is_refused_but_rounding_is_not(metric_class):
    with pytest.raises(ValueError, match="give minus the log-likelihood"):
        metric_class().update(-5.0, 3)
    metric = metric_class()
    metric.update(-1e-6, 3)
    certain = 1.0 if metric_class is Perplexity else 0.0
    assert metric.compute().item() == pytest.approx(certain, abs=1e-6)


@ALL
def test_counts_must_be_integers_of_the_same_shape(metric_class):
    with pytest.raises(TypeError, match="expected an integer"):
        metric_class().update(1.0, 2.0)
    with pytest.raises(ValueError, match="one count for each sum"):
        metric_class().update(torch.tensor([1.0, 2.0]), 3)
    with pytest.raises(ValueError, match="no text in this update"):
        metric_class().update(torch.zeros(0), torch.zeros(0, dtype=torch.int64))


@ALL
@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_compute_before_update_is_refused(metric_class):
    with pytest.raises(ValueError, match="call update before compute"):
        metric_class().compute()


def test_logits_and_targets_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 3, 5\), target has \(2, 4\)"):
        summed_negative_log_likelihood(torch.zeros(2, 3, 5), torch.zeros(2, 4).long())
    with pytest.raises(TypeError, match="expected floating point and integer"):
        summed_negative_log_likelihood(torch.zeros(2, 5), torch.zeros(2))
    with pytest.raises(ValueError, match="no token to score among 2 targets"):
        summed_negative_log_likelihood(torch.zeros(2, 5), torch.tensor([-100, -100]))


@pytest.mark.parametrize("token", [5, -1])
def test_target_outside_the_vocabulary_is_named(token):
    with pytest.raises(ValueError, match=rf"target {token} is outside \[0, 5\)"):
        summed_negative_log_likelihood(torch.zeros(2, 5), torch.tensor([4, token]))
