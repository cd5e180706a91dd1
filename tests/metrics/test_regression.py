import math

import pytest
import torch
import torchmetrics

from paper_repro.metrics.regression import MeanSquaredError, RootMeanSquaredError


def unequal_batches(seed):
    generator = torch.Generator().manual_seed(seed)
    for size in (7, 1, 32, 3):
        yield tuple(torch.randn(2, size, 5, generator=generator, dtype=torch.float64))


def test_closed_form_of_two_unequal_batches_is_pooled_not_a_mean_of_roots():
    metric = RootMeanSquaredError()
    metric.update(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, 0.0]))
    metric.update(torch.tensor([5.0]), torch.tensor([0.0]))
    assert metric.compute().item() == math.sqrt(28 / 4)
    assert metric.compute().item() != (1 + 5) / 2


@pytest.mark.parametrize(("ours", "squared"), [(MeanSquaredError, True), (RootMeanSquaredError, False)])
def test_agrees_with_torchmetrics_in_float64(ours, squared):
    metric, reference = ours(), torchmetrics.MeanSquaredError(squared=squared).set_dtype(torch.float64)
    for preds, target in unequal_batches(0):
        metric.update(preds, target)
        reference.update(preds.flatten(), target.flatten())
    # 215 additions in float64: 215 * 2^-53 = 2.4e-14
    torch.testing.assert_close(metric.compute(), reference.compute(), rtol=3e-14, atol=0)


def test_forward_returns_the_batch_and_accumulates_and_reset_forgets():
    metric = RootMeanSquaredError()
    assert metric(torch.tensor([3.0]), torch.tensor([0.0])).item() == 3.0
    assert metric(torch.tensor([4.0]), torch.tensor([0.0])).item() == 4.0
    assert metric.compute().item() == math.sqrt(12.5)
    metric.reset()
    metric.update(torch.tensor([1.0]), torch.tensor([0.0]))
    assert metric.compute().item() == 1.0


def test_small_error_after_a_large_one_is_not_lost_to_float32():
    metric = MeanSquaredError()
    metric.update(torch.tensor([1e4]), torch.tensor([0.0]))
    for _ in range(100):
        metric.update(torch.tensor([1.0]), torch.tensor([0.0]))
    assert metric.compute().item() == (1e8 + 100) / 101  # in float32 1e8 + 1 is 1e8


def test_difference_of_bytes_does_not_wrap():
    metric = MeanSquaredError()
    metric.update(torch.tensor([0], dtype=torch.uint8), torch.tensor([255], dtype=torch.uint8))
    assert metric.compute().item() == 255.0**2


def test_gradient_of_the_batch_value():
    preds = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    RootMeanSquaredError()(preds, torch.zeros(2)).backward()
    # d sqrt(mean p^2) / dp = p / (2 sqrt(12.5))
    torch.testing.assert_close(preds.grad, preds.detach() / (2 * math.sqrt(12.5)), rtol=1e-14, atol=0)


def test_nan_of_a_diverged_model_passes_through():
    metric = RootMeanSquaredError()
    metric.update(torch.tensor([float("nan"), 1.0]), torch.zeros(2))
    assert math.isnan(metric.compute().item())


def test_shapes_are_not_broadcast():
    with pytest.raises(ValueError, match=r"\(3, 1\).*\(3,\).*nothing is broadcast"):
        RootMeanSquaredError().update(torch.zeros(3, 1), torch.zeros(3))


def test_empty_batch_is_refused():
    with pytest.raises(ValueError, match=r"empty, shape \(0, 4\)"):
        RootMeanSquaredError().update(torch.zeros(0, 4), torch.zeros(0, 4))


def test_complex_is_refused():
    with pytest.raises(TypeError, match="expected real tensors"):
        MeanSquaredError().update(torch.zeros(2, dtype=torch.complex64), torch.zeros(2))


@pytest.mark.parametrize("metric_class", [MeanSquaredError, RootMeanSquaredError])
@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_compute_before_update_is_refused(metric_class):
    with pytest.raises(ValueError, match="call update before compute"):
        metric_class().compute()
