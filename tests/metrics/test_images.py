import math

import pytest
import torch
from torchmetrics.image import PeakSignalNoiseRatio

from paper_repro.metrics.images import MeanImagePSNR, PooledPSNR

BOTH = pytest.mark.parametrize("metric_class", [PooledPSNR, MeanImagePSNR])


def flat_images(*errors):
    target = torch.zeros(len(errors), 3, 4, 4, dtype=torch.float64)
    return target + torch.tensor(errors, dtype=torch.float64).reshape(-1, 1, 1, 1), target


def test_pooled_takes_the_logarithm_of_one_mean_and_per_image_the_mean_of_logarithms():
    pooled, per_image = PooledPSNR(data_range=1.0), MeanImagePSNR(data_range=1.0)
    for metric in (pooled, per_image):
        metric.update(*flat_images(0.1, 0.01))
        metric.update(*flat_images(0.1))
    # errors 1e-2, 1e-4, 1e-2: their mean is 6.7e-3; their decibels are 20, 40, 20
    assert pooled.compute().item() == pytest.approx(-10 * math.log10((1e-2 + 1e-4 + 1e-2) / 3), rel=1e-13)
    assert per_image.compute().item() == pytest.approx(80 / 3, rel=1e-13)


@BOTH
def test_scaling_images_and_range_alike_changes_nothing(metric_class):
    generator = torch.Generator().manual_seed(0)
    preds, target = torch.rand(2, 3, 2, 5, 5, generator=generator, dtype=torch.float64)
    unit, byte = metric_class(data_range=1.0), metric_class(data_range=255)
    unit.update(preds, target)
    byte.update(255 * preds, 255 * target)
    # rounding of the scaled pixels: some 2^-53 each, of values near 10 dB
    torch.testing.assert_close(unit.compute(), byte.compute(), rtol=1e-13, atol=0)


@pytest.mark.parametrize(("metric_class", "dim"), [(PooledPSNR, None), (MeanImagePSNR, (1, 2, 3))])
def test_agrees_with_torchmetrics_in_float64(metric_class, dim):
    reference = PeakSignalNoiseRatio(data_range=2.0, dim=dim, reduction="elementwise_mean").set_dtype(torch.float64)
    metric = metric_class(data_range=2.0)
    generator = torch.Generator().manual_seed(1)
    for size in (4, 1, 3):
        preds, target = 2 * torch.rand(2, size, 3, 5, 7, generator=generator, dtype=torch.float64)
        metric.update(preds, target)
        reference.update(preds, target)
    # torchmetrics keeps the range as a float32 tensor; 2 is exact there, its logarithm is good to 6e-8
    torch.testing.assert_close(metric.compute(), reference.compute().double(), rtol=1e-6, atol=0)


@BOTH
def test_perfect_images_are_infinitely_good(metric_class):
    metric = metric_class(data_range=1.0)
    metric.update(*flat_images(0.0, 0.0))
    assert metric.compute().item() == math.inf


def test_one_perfect_image_makes_the_mean_infinite_but_not_the_pooled_value():
    pooled, per_image = PooledPSNR(data_range=1.0), MeanImagePSNR(data_range=1.0)
    for metric in (pooled, per_image):
        metric.update(*flat_images(0.1, 0.0))
    assert per_image.compute().item() == math.inf
    assert pooled.compute().item() == pytest.approx(-10 * math.log10(1e-2 / 2), rel=1e-13)


@BOTH
def test_forward_returns_the_batch_and_accumulates_and_reset_forgets(metric_class):
    metric = metric_class(data_range=1.0)
    assert metric(*flat_images(0.1)).item() == pytest.approx(20, rel=1e-13)
    assert metric(*flat_images(0.01)).item() == pytest.approx(40, rel=1e-13)
    assert 20 < metric.compute().item() < 40
    metric.reset()
    metric.update(*flat_images(0.01))
    assert metric.compute().item() == pytest.approx(40, rel=1e-13)


@BOTH
@pytest.mark.parametrize("data_range", [0, -1.0, math.inf, math.nan, None, (0.0, 1.0)])
def test_range_must_be_a_positive_number(metric_class, data_range):
    with pytest.raises(ValueError, match="expected a positive finite number"):
        metric_class(data_range=data_range)


@BOTH
def test_range_has_no_default(metric_class):
    with pytest.raises(TypeError, match="data_range"):
        metric_class()


@BOTH
def test_images_wider_than_the_range_are_refused_and_leave_no_trace(metric_class):
    metric = metric_class(data_range=1.0)
    metric.update(*flat_images(0.1))
    bytes_ = torch.tensor([[0.0, 255.0]])
    with pytest.raises(ValueError, match=r"spans \[0, 255\], wider than data_range=1"):
        metric.update(bytes_, bytes_)
    assert metric.compute().item() == pytest.approx(20, rel=1e-13)


@BOTH
def test_shape_mismatch_and_empty_batch_are_refused(metric_class):
    metric = metric_class(data_range=1.0)
    with pytest.raises(ValueError, match="give two tensors of one shape"):
        metric.update(torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 4, 4))
    with pytest.raises(ValueError, match="empty"):
        metric.update(torch.zeros(0, 3, 4, 4), torch.zeros(0, 3, 4, 4))


def test_per_image_needs_a_batch_dimension():
    with pytest.raises(ValueError, match="add the batch dimension"):
        MeanImagePSNR(data_range=1.0).update(torch.zeros(4), torch.zeros(4))


@BOTH
@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_compute_before_update_is_refused(metric_class):
    with pytest.raises(ValueError, match="call update before compute"):
        metric_class(data_range=1.0).compute()
