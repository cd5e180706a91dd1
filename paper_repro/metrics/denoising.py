"""Errors of images on the scale of 8 bits, 0 to 255, as EBT counts them (its table 4)."""

from collections.abc import Mapping

from torch import Tensor
from torchmetrics import Metric

from paper_repro.metrics.images import MeanImagePSNR, PooledPSNR
from paper_repro.metrics.regression import MeanSquaredError

LEVELS = 255.0
ERRORS = ("psnr", "image_psnr", "mse")


def new_errors() -> dict[str, Metric]:
    """Return ``psnr`` of the mean squared error ``mse``, and ``image_psnr``, the mean over images of each one's own."""
    return {
        "psnr": PooledPSNR(data_range=LEVELS),
        "image_psnr": MeanImagePSNR(data_range=LEVELS),
        "mse": MeanSquaredError(),
    }


def update_errors(metrics: Mapping[str, Metric], found: Tensor, images: Tensor) -> None:
    """Account for images that were found in the place of others, (B, C, H, H) in [-1, 1] both."""
    for name in ERRORS:
        metrics[name].update(levels(found), levels(images))


def levels(images: Tensor) -> Tensor:
    """Return images in [-1, 1] on the scale 0 ... 255, clipped to it."""
    return (images.clamp(-1, 1) + 1) * (LEVELS / 2)
