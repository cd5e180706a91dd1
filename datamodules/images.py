"""Images in batches: as they are, with their labels, or with cells of theirs blanked, to be completed (CET, section 2
and appendix C).

Letters: B images, C channels, H image side, c side of a mask's cell, N images of a split.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.base.errors import one_of
from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import Batch, SourceDataModule, cached_permutation, generator_of, in_epochs
from paper_repro.datamodules.image_sources import TRAIN, ImageSource
from paper_repro.datamodules.pixels import Pixels
from paper_repro.datamodules.prepared_images import PREPARE_CELEBA, CelebAImages

TRIES = 10


@dataclass(eq=False, repr=False)
class ImageData(SourceDataModule):
    """Images of a source; a batch is (B, C, H, H), float32 in [-1, 1].

    A training batch follows from (``seed``, step) alone.  Every image is seen once an epoch, in an order of that
    epoch's; batches run on across epochs.  The images of an evaluation follow from ``evaluation_seed`` alone; fewer of
    them, or batches of another size, are the first of the same.

    Args:
        source: where the images come from.
        batch_size: B.
        evaluation_batch_size: None: ``batch_size``.
        num_evaluation_images: of a split, at most; None: all.
        seed: of the training batches.
        evaluation_seed: of what is evaluated.
        labelled: whether a batch is (images, labels), the labels (B,), int64.
        data_root, cache: see ``DataSource.find``.
    """

    source: ImageSource
    batch_size: int = 128
    evaluation_batch_size: int | None = None
    num_evaluation_images: int | None = 2_000
    seed: int = 0
    evaluation_seed: int = 0
    labelled: bool = False
    data_root: str | Path | None = None
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        numbers = ("batch_size", "evaluation_batch_size", "num_evaluation_images", "seed", "evaluation_seed")
        self.check_numbers(*numbers)
        if self.labelled and not self.source.num_classes:
            raise ValueError(f"{type(self.source).__name__} has no labels: take a source that has, or labelled=false")
        self.source.find(self.data_root, self.cache)

    def train_batch(self, step: int) -> Batch:
        generator = generator_of(self.seed, "images", "batch", step)
        treatment = self._drawn(self.batch_size, generator)
        draws = torch.rand(self.batch_size, TRIES, 4, generator=generator, dtype=torch.float64).tolist()
        count = self.source.counts[TRAIN]
        chosen = in_epochs(step, self.batch_size, count, self.seed, "images", "order")
        images = [self.source.augmented(index, some) for index, some in zip(chosen, draws, strict=True)]
        return self._batch(self._scaled(images), treatment, TRAIN, chosen)

    def example_batch(self) -> Batch:
        images = torch.zeros(self.batch_size, self.source.channels, self.source.size, self.source.size)
        return (images, torch.zeros(self.batch_size, dtype=torch.int64)) if self.labelled else images

    def evaluation_batches(self, split: str) -> Iterator[Batch]:
        one_of("split", split, self.splits)
        total = self.source.counts[split]
        order = cached_permutation(total, mix(self.evaluation_seed, "images", "evaluation", split))
        order = order[: self.num_evaluation_images]
        # Drawn for all images at once: what is done to an image then does not depend on the size of a batch.
        treatment = self._drawn(len(order), generator_of(self.evaluation_seed, "images", "masks", split))
        size = self.evaluation_batch_size or self.batch_size
        for some, drawn in zip(order.split(size), treatment.split(size), strict=True):
            chosen = some.tolist()
            images = self._scaled([self.source.image(split, index) for index in chosen])
            yield self._batch(images, drawn, split, chosen)

    def _drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw what is done to each of ``count`` images, (count, ...): nothing."""
        return torch.empty(count, 0)

    def _batch(self, images: Tensor, treatment: Tensor, split: str, chosen: Sequence[int]) -> Batch:
        """Return a batch of images (B, C, H, H), of what is done to them, and of where in the split they stand."""
        if not self.labelled:
            return images
        return images, torch.tensor([self.source.label(split, index) for index in chosen])  # (B,)

    def _scaled(self, images: Sequence[Pixels]) -> Tensor:
        pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
        return pixels.contiguous().div_(self.source.white / 2).sub_(1)  # (B, C, H, H)


@dataclass(eq=False, repr=False)
class MaskedImageData(ImageData):
    """The same with cells blanked: a batch is (masked, images), (B, C, H, H) both.  Blank pixels are 0, mid-grey.

    Args:
        cell: c.
        mask_ratio: share of the (H/c)^2 cells that are blank, rounded to whole cells.

    The other arguments are those of ``ImageData``.
    """

    cell: int = 20
    mask_ratio: float = 0.5
    labelled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_numbers("cell")
        size, ratio = self.source.size, self.mask_ratio
        if size % self.cell:
            raise ValueError(f"cells of {self.cell} do not tile images of {size}: give a cell that divides {size}")
        self.side = size // self.cell
        self.num_cells = self.side**2
        self.num_blank = round(ratio * self.num_cells)
        if not 0 < self.num_blank < self.num_cells:
            raise ValueError(
                f"mask_ratio={ratio} blanks {self.num_blank} of {self.num_cells} cells, expected at least one and not "
                "all: give smaller cells or another ratio"
            )

    def example_batch(self) -> Batch:
        images = super().example_batch()
        return images, images

    def blank(self, masked: Tensor) -> Tensor:
        """Return which pixels of masked images (B, C, H, H) are blank, (B, 1, H, H): cells that are 0 throughout."""
        return self._pixels(functional.max_pool2d(masked.abs().amax(1, keepdim=True), self.cell) == 0)

    def masked(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return images (B, C, H, H) with cells blanked that the generator draws."""
        return self._batch(images, self._drawn(len(images), generator), "", ())[0]

    def _pixels(self, cells: Tensor) -> Tensor:
        """Return cells (B, 1, H/c, H/c) pixel by pixel, (B, 1, H, H)."""
        return cells.repeat_interleave(self.cell, 2).repeat_interleave(self.cell, 3)

    def _drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """Return which cells of ``count`` images are blank, (count, (H/c)^2): equally many of each."""
        ranks = torch.rand(count, self.num_cells, generator=generator, dtype=torch.float64).argsort(dim=1, stable=True)
        return torch.zeros(count, self.num_cells, dtype=torch.bool).scatter_(1, ranks[:, : self.num_blank], True)

    def _batch(self, images: Tensor, treatment: Tensor, split: str, chosen: Sequence[int]) -> Batch:
        return images.masked_fill(self._pixels(treatment.view(-1, 1, self.side, self.side)), 0.0), images


@dataclass(eq=False, repr=False)
class CelebAData(MaskedImageData):
    """CelebA's images with cells blanked; the arguments are those of ``CelebAImages`` and ``MaskedImageData``."""

    source: ImageSource = field(init=False)
    files: Mapping[str, str] = field(kw_only=True)
    size: int = 120
    scale: Sequence[float] = (0.9, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    prepare: str = PREPARE_CELEBA

    def __post_init__(self) -> None:
        self.source = CelebAImages(self.files, self.size, self.scale, self.ratio, self.prepare)
        super().__post_init__()
