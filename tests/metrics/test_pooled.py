"""Metrics that pool sums over batches and processes: means, errors of numbers and of images."""

import json
import math
import os
import socket
import subprocess
import sys

import pytest
import torch
import torchmetrics
from torchmetrics.image import PeakSignalNoiseRatio
from torchmetrics.text import Perplexity as TorchmetricsPerplexity

from paper_repro.base.identity import IGNORED
from paper_repro.metrics.likelihood import (
    CrossEntropy,
    Perplexity,
    counted_sum,
    mean_cross_entropy,
    summed_negative_log_likelihood,
)
from paper_repro.metrics.pooled import (
    Largest,
    Mean,
    MeanImagePSNR,
    MeanSquaredError,
    PooledPSNR,
    RootMeanSquaredError,
    new_errors,
    update_errors,
)

CONVERSIONS = {
    "half": lambda module: module.half(),
    "float": lambda module: module.float(),
    "to bfloat16": lambda module: module.to(dtype=torch.bfloat16),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_changing_the_precision_of_the_model_loses_nothing_of_the_sum(conversion):
    metric = CrossEntropy()
    model = torch.nn.ModuleDict({"layer": torch.nn.Linear(1, 1), "metric": metric})
    CONVERSIONS[conversion](model)
    assert metric.pooled_sum.dtype is torch.float64
    metric.update(1e8 + 1, 1)
    CONVERSIONS[conversion](model)
    assert model["layer"].weight.dtype is not torch.float64
    assert metric.compute().item() == 1e8 + 1
    metric.reset()
    assert metric.pooled_sum.dtype is torch.float64


def test_a_mean_weighs_each_number():
    metric = Mean()
    metric.update(torch.tensor(1.0), 3)
    metric.update(torch.tensor([5.0, 7.0]))
    assert metric.compute().item() == (3 * 1 + 5 + 7) / 5
    assert metric.compute().dtype is torch.float64


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", [Mean, Largest])
def test_what_is_not_finite_passes_into_the_result(kind, wrong):
    for place in range(3):
        metric = kind()
        for step in range(3):
            metric.update(torch.tensor([1.0, wrong if step == place else 2.0]))
        assert metric.compute().item() == pytest.approx(wrong, nan_ok=True)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_compute_before_update_is_refused():
    with pytest.raises(ValueError, match="RootMeanSquaredError has seen no elements: call update before compute"):
        RootMeanSquaredError().compute()


SQUARED, ROOT = torchmetrics.MeanSquaredError(), torchmetrics.MeanSquaredError(squared=False)
MEAN, EACH = (PeakSignalNoiseRatio(data_range=2.0, dim=dim, reduction="elementwise_mean") for dim in (None, (1, 2, 3)))


# 840 additions in float64: 840 * 2^-53 = 9e-14.  torchmetrics keeps the range as a float32 tensor; 2 is exact there,
# and its logarithm is good to 6e-8.
@pytest.mark.parametrize(
    ("metric", "reference", "rtol"),
    [
        (MeanSquaredError(), SQUARED, 1e-13),
        (RootMeanSquaredError(), ROOT, 1e-13),
        (PooledPSNR(data_range=2.0), MEAN, 1e-6),
        (MeanImagePSNR(data_range=2.0), EACH, 1e-6),
    ],
)
def test_errors_agree_with_torchmetrics_in_float64(metric, reference, rtol):
    reference.set_dtype(torch.float64)
    generator = torch.Generator().manual_seed(0)
    for size in (4, 1, 3):
        preds, target = 2 * torch.rand(2, size, 3, 5, 7, generator=generator, dtype=torch.float64)
        metric.update(preds, target)
        reference.update(preds, target)
    torch.testing.assert_close(metric.compute(), reference.compute().double(), rtol=rtol, atol=0)


def test_difference_of_bytes_does_not_wrap_and_shapes_are_not_broadcast():
    metric = MeanSquaredError()
    metric.update(torch.tensor([0], dtype=torch.uint8), torch.tensor([255], dtype=torch.uint8))
    assert metric.compute().item() == 255.0**2
    with pytest.raises(ValueError, match=r"\(3, 1\).*\(3,\).*nothing is broadcast"):
        metric.update(torch.zeros(3, 1), torch.zeros(3))


def test_one_perfect_image_makes_the_mean_infinite_but_not_the_pooled_value():
    pooled, per_image = PooledPSNR(data_range=1.0), MeanImagePSNR(data_range=1.0)
    target = torch.zeros(2, 3, 4, 4, dtype=torch.float64)
    preds = target + torch.tensor([0.1, 0.0], dtype=torch.float64).view(2, 1, 1, 1)
    for metric in (pooled, per_image):
        metric.update(preds, target)
    assert per_image.compute().item() == math.inf
    assert pooled.compute().item() == pytest.approx(-10 * math.log10(1e-2 / 2), rel=1e-13)


def test_errors_of_images_are_on_the_scale_of_8_bits_and_clipped_to_it():
    metrics, images = new_errors(), torch.tensor([-1.0, 1.0]).expand(2, 1, 2, 2)
    update_errors(metrics, images.clone().fill_(3.0), images)
    found = {name: metric.compute().item() for name, metric in metrics.items()}
    assert found == {"psnr": pytest.approx(10 * math.log10(2)), "image_psnr": found["psnr"], "mse": 255.0**2 / 2}


PREDS = torch.linspace(0, 1, 60, dtype=torch.float64).reshape(5, 12)
TARGET = PREDS.flip(1)
NLL, COUNTS = torch.tensor([3.0, 90.0, 0.5, 7.0, 11.0], dtype=torch.float64), torch.tensor([2, 50, 1, 3, 4])


def fed(rows):
    errors = [MeanSquaredError(), RootMeanSquaredError(), PooledPSNR(data_range=1.0), MeanImagePSNR(data_range=1.0)]
    likelihoods, numbers, lost = [CrossEntropy(), Perplexity()], [Mean(), Largest()], [Mean(), Largest()]
    for metric in errors:
        metric.update(PREDS[rows], TARGET[rows])
    for metric in likelihoods:
        metric.update(NLL[rows], COUNTS[rows])
    for metric in numbers:
        metric.update(NLL[rows])
    for metric in lost:  # the only number of the second process is none
        metric.update(torch.where(NLL[rows] == 11, torch.nan, NLL[rows]))
    return errors + likelihoods + numbers + lost


def answer_as_one_of_two(rank, port):
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    metrics = fed(slice(0, 4) if rank == 0 else slice(4, 5))
    answer = [metric.compute().item() for metric in metrics]
    torch.distributed.destroy_process_group()
    return answer


@pytest.mark.slow
def test_two_processes_with_unequal_shares_agree_with_one():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "1", str(port)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        answers = [answer_as_one_of_two(0, port), json.loads(other.communicate(timeout=120)[0])]
    finally:
        other.kill()
    expected = [metric.compute().item() for metric in fed(slice(0, 5))]
    # sums of at most 60 float64 terms in another order: 60 * 2^-53 = 7e-15; perplexity and decibels amplify it by < 5
    assert answers[0] == pytest.approx(answers[1], rel=0, abs=0, nan_ok=True)
    assert answers[1] == pytest.approx(expected, rel=4e-14, nan_ok=True)


# Likelihood.


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


if __name__ == "__main__":
    print(json.dumps(answer_as_one_of_two(int(sys.argv[1]), int(sys.argv[2]))))
