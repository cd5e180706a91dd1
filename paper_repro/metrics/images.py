"""Peak signal-to-noise ratio: ``10 log10(data_range^2 / MSE)``, in decibels.

Averaging the error and averaging the decibels give different numbers (the second is never the smaller), so they are
two classes and there is no default.  EBT's Table 4 pairs MSE and PSNR so that the pooled form fits to 0.02 dB.
"""

import math
from typing import Any, ClassVar

from torch import Tensor

from paper_repro.metrics import quantities
from paper_repro.metrics.pooled import PooledMean
from paper_repro.metrics.quantities import Quantity
from paper_repro.metrics.regression import squared_error

_SPREAD_TOLERANCE = 1e-6
"""Relative; a float32 image mapped to [0, 255] and back leaves its range by some 1e-7."""


def _checked_range(data_range: float) -> float:
    if not (isinstance(data_range, int | float) and math.isfinite(data_range) and data_range > 0):
        raise ValueError(
            f"data_range is {data_range!r}, expected a positive finite number: the distance between the darkest and "
            "the brightest possible pixel, 1.0 for images in [0, 1], 255 for bytes"
        )
    return float(data_range)


def _check_spread(target: Tensor, data_range: float) -> None:
    lowest, highest = float(target.min()), float(target.max())
    if highest - lowest > data_range * (1 + _SPREAD_TOLERANCE):
        raise ValueError(
            f"the target spans [{lowest:g}, {highest:g}], wider than data_range={data_range:g}: map the images into "
            "the range, or give the range that they are in"
        )


def _decibels(mean_squared_error: Tensor, data_range: float) -> Tensor:
    return 20 * math.log10(data_range) - 10 * mean_squared_error.log10()


class PooledPSNR(PooledMean):
    """PSNR of one mean squared error over every pixel of every image: pool first, then take the logarithm.

    If every image is perfect it is ``inf``; one perfect image among others only lowers the error.

    Shape: preds and target the same, any.  Unit: dB.  Predictions are not clamped to the range.

    Raises:
        ValueError: ``data_range`` not positive, a target wider than it, shapes that differ, an empty batch, or
            ``compute`` before any ``update``.
    """

    quantity: ClassVar[Quantity] = quantities.PSNR
    higher_is_better = quantity.higher_is_better

    def __init__(self, *, data_range: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_range = _checked_range(data_range)

    def update(self, preds: Tensor, target: Tensor) -> None:
        error = squared_error(preds, target)
        _check_spread(target, self.data_range)
        self._add(error.sum(), error.numel())

    def compute(self) -> Tensor:
        return _decibels(self._mean(), self.data_range)


class MeanImagePSNR(PooledMean):
    """Mean over images of each image's own PSNR.

    A perfect image has ``inf`` dB, and so has then the mean; it is not left out or capped.

    Shape: preds and target (B, ...), one image per row, at least two dimensions.  Unit: dB.  Predictions are not
    clamped to the range.

    Raises:
        ValueError: ``data_range`` not positive, a target wider than it, shapes that differ or without a batch
            dimension, an empty batch, or ``compute`` before any ``update``.
    """

    quantity: ClassVar[Quantity] = quantities.PSNR
    higher_is_better = quantity.higher_is_better
    counted = "images"

    def __init__(self, *, data_range: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_range = _checked_range(data_range)

    def update(self, preds: Tensor, target: Tensor) -> None:
        error = squared_error(preds, target)
        if error.ndim < 2:
            raise ValueError(f"images have shape {tuple(error.shape)}, expected (B, ...): add the batch dimension")
        _check_spread(target, self.data_range)
        self._add(_decibels(error.flatten(1).mean(dim=1), self.data_range).sum(), error.shape[0])

    def compute(self) -> Tensor:
        return self._mean()
