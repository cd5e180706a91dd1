"""Scores of denoising: noised images, the same for every model, baseline and seed, and errors on 8 bits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.images import ImageData
from paper_repro.metrics.pooled import new_errors, update_errors
from paper_repro.models import ebt_image as diffusion

LEVELS: Mapping[str, int] = {"in": 99, "out": 199}
"""Times of the noise: that of training, and a higher one, which EBT's code takes and the paper does not give."""


@dataclass(frozen=True)
class Noised:
    """A batch at one level of noise."""

    images: Tensor
    """(B, C, H, H) in [-1, 1]."""
    noised: Tensor
    """(B, C, H, H)."""


def plain_images(data: CounterBasedDataModule) -> ImageData:
    """Return the data if they are images as they are.

    Raises:
        UsageError: they are others.
    """
    if type(data) is not ImageData or data.labelled:
        raise UsageError(f"denoising takes plain images, ImageData without labels, the data are {type(data).__name__}")
    return data


def noised_batches(data: ImageData, time: int, split: str | None = None) -> Iterator[Noised]:
    """Yield the evaluated images of a split with noise that follows from ``data.evaluation_seed`` and the time.

    Args:
        split: None: the last one of the data, "test" or "val".

    Raises:
        ValueError: a time outside the schedule.
    """
    split = data.splits[-1] if split is None else split
    signal, std = diffusion.signal(time), diffusion.noise_std(time)
    count = 0
    for images in data.evaluation_batches(split):
        # Drawn for each image by itself: the noise then does not depend on the size of a batch.
        seeds = [mix(data.evaluation_seed, "denoising", split, time, count + row) for row in range(len(images))]
        drawn = [torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        yield Noised(images, signal * images + std * torch.stack(drawn))
        count += len(images)


class Scores:
    """Errors of found images, added up over batches."""

    def __init__(self) -> None:
        self.metrics = new_errors()

    def update(self, found: Tensor, images: Tensor) -> None:
        """Account for images (B, C, H, H) that were found in the place of others."""
        update_errors(self.metrics, found.cpu(), images.cpu())

    def compute(self) -> dict[str, float]:
        """Return ``psnr``, ``image_psnr`` and ``mse``."""
        return {kind: float(metric.compute()) for kind, metric in self.metrics.items()}
