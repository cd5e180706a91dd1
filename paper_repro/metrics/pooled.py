"""Means over everything that was ever seen, and errors of numbers and images that are made of them.

A mean is a float64 sum and an integer count, added across batches and processes.  torchmetrics' own means leave NaN
out, so that a model which diverged looks as good as its other batches.  Here NaN and inf pass into the result.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import MaxMetric, Metric

LEVELS = 255.0
"""The brightest of 8 bits."""


class PooledMean(Metric):
    """What a subclass adds batch by batch, divided by what it counts; the metric is computed from that mean.

    The sum stays float64 when the module that owns the metric is moved to another precision (``.half()``,
    ``.to(torch.bfloat16)``, Lightning's "bf16-true"); only ``set_dtype`` changes it.

    Raises:
        ValueError: ``compute`` before any ``update``.
    """

    full_state_update = False
    counted: ClassVar[str] = "elements"

    pooled_sum: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("pooled_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        if self.count == 0:
            raise ValueError(f"{type(self).__name__} has seen no {self.counted}: call update before compute")
        return self._value(self.pooled_sum / self.count)

    def _value(self, mean: Tensor) -> Tensor:
        return mean

    def _add(self, batch_sum: Tensor, batch_count: Tensor | int) -> None:
        self.pooled_sum = self.pooled_sum + batch_sum
        self.count = self.count + batch_count

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> torch.nn.Module:
        if self._dtype_convert:
            return super()._apply(fn, exclude_state)
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), exclude_state)


class Mean(PooledMean):
    """Mean of numbers that are given batch by batch, a tensor of any shape, with a weight for all of them or 1."""

    counted = "numbers"

    def update(self, values: Tensor, weight: int = 1) -> None:
        self._add(values.detach().to(torch.float64).sum() * weight, values.numel() * weight)


class Largest(MaxMetric):
    """The largest of all numbers that were given; NaN if one of them is NaN."""

    def __init__(self) -> None:
        super().__init__(nan_strategy="disable")


def squared_error(preds: Tensor, target: Tensor) -> Tensor:
    """Return ``(preds - target)^2`` in float64, element by element; ValueError: the shapes differ."""
    if preds.shape != target.shape:
        raise ValueError(
            f"preds have shape {tuple(preds.shape)}, target has {tuple(target.shape)}: give two tensors of one shape, "
            "nothing is broadcast"
        )
    return (preds.to(torch.float64) - target.to(torch.float64)).square()


class MeanSquaredError(PooledMean):
    """Mean of ``(preds - target)^2`` over all elements of all batches: batches weigh by their size.

    Shape: preds and target the same, any.  Unit: that of the target, squared.
    """

    def update(self, preds: Tensor, target: Tensor) -> None:
        self._add(squared_error(preds, target).sum(), target.numel())


class RootMeanSquaredError(MeanSquaredError):
    """``sqrt`` of the pooled mean squared error; never a mean of per-batch roots (CEM, Table 3)."""

    def _value(self, mean: Tensor) -> Tensor:
        return mean.sqrt()


class PooledPSNR(MeanSquaredError):  # noqa: N818
    """``10 log10(data_range^2 / MSE)`` in dB, of one error over every pixel of every image: pooled first.

    EBT's Table 4 pairs MSE and PSNR so that this form fits to 0.02 dB.  If every image is perfect it is ``inf``; one
    perfect image among others only lowers the error.  Predictions are not clamped to the range.

    Args:
        data_range: the distance between the darkest and the brightest possible pixel.
    """

    def __init__(self, *, data_range: float) -> None:
        super().__init__()
        self.data_range = data_range

    def _value(self, mean: Tensor) -> Tensor:
        return 20 * math.log10(self.data_range) - 10 * mean.log10()


class MeanImagePSNR(PooledPSNR):
    """Mean over images of each image's own PSNR in dB, never below the pooled one; ``inf`` with one perfect image.

    Shape: preds and target (B, ...), one image per row, at least two dimensions.
    """

    counted = "images"

    def update(self, preds: Tensor, target: Tensor) -> None:
        errors = squared_error(preds, target).flatten(1).mean(dim=1)  # (B,)
        self._add(super()._value(errors).sum(), len(errors))

    def _value(self, mean: Tensor) -> Tensor:
        return mean


def new_errors() -> dict[str, Metric]:
    """Return the errors of images on the scale of 8 bits, 0 to 255 (EBT, table 4): ``psnr`` of the mean squared error
    ``mse``, and ``image_psnr``, the mean over images of each one's own.
    """
    return {
        "psnr": PooledPSNR(data_range=LEVELS),
        "image_psnr": MeanImagePSNR(data_range=LEVELS),
        "mse": MeanSquaredError(),
    }


def update_errors(metrics: Mapping[str, Metric], found: Tensor, images: Tensor) -> None:
    """Account for images that were found in the place of others, (B, C, H, H) in [-1, 1] both."""
    for name in new_errors():
        metrics[name].update(_levels(found), _levels(images))


def computed_errors(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return ``psnr``, ``image_psnr`` and ``mse``."""
    return {kind: float(metric.compute()) for kind, metric in metrics.items()}


def _levels(images: Tensor) -> Tensor:
    """Return images in [-1, 1] on the scale 0 ... 255, clipped to it."""
    return (images.clamp(-1, 1) + 1) * (LEVELS / 2)
