"""Images in batches: as they are, with their labels, or with cells of theirs blanked, to be completed (CET, section 2
and appendix C).

Letters: B images, C channels, H image side, c side of a mask's cell, N images of a split.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.base.errors import at_least, one_of
from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import Batch, CounterBasedDataModule, cached_permutation, in_epochs
from paper_repro.datamodules.image_decoding import Pixels
from paper_repro.datamodules.image_sources import TRAIN, ImageSource

TRIES = 10


class ImageData(CounterBasedDataModule):
    """Images of a source; a batch is (B, C, H, H), float32 in [-1, 1].

    A training batch follows from (``seed``, step) alone: which images, and what is done to them.  Every image is seen
    once an epoch, in an order of that epoch's; batches run on across epochs.  An evaluation looks at images that follow
    from ``evaluation_seed`` alone, nothing done to them; fewer of them, or batches of another size, are the first of
    the same.

    Args:
        source: where the images come from.
        batch_size: B.
        evaluation_batch_size: None: ``batch_size``.
        num_evaluation_images: of a split, at most; None: all.
        seed: of the training batches.
        evaluation_seed: of what is evaluated.
        labelled: whether a batch is (images, labels), the labels (B,), int64.
        data_root, cache: see ``ImageSource.find``.

    Raises:
        ValueError: a number out of range, or labels of a source that has none.
    """

    def __init__(
        self,
        source: ImageSource,
        batch_size: int = 128,
        evaluation_batch_size: int | None = None,
        num_evaluation_images: int | None = 2_000,
        seed: int = 0,
        evaluation_seed: int = 0,
        labelled: bool = False,
        data_root: str | Path | None = None,
        cache: str | Path | None = None,
    ) -> None:
        super().__init__()
        self.source, self.labelled = source, bool(labelled)
        if labelled and not source.num_classes:
            raise ValueError(f"{type(source).__name__} has no labels: take a source that has, or labelled=false")
        source.find(data_root, cache)
        self.batch_size = at_least("batch_size", batch_size)
        each = batch_size if evaluation_batch_size is None else evaluation_batch_size
        self.evaluation_batch_size = at_least("evaluation_batch_size", each)
        self.num_evaluation_images = (
            None if num_evaluation_images is None else at_least("num_evaluation_images", num_evaluation_images)
        )
        self.seed = at_least("seed", seed, 0)
        self.evaluation_seed = at_least("evaluation_seed", evaluation_seed, 0)

    @property
    def splits(self) -> tuple[str, ...]:
        return self.source.splits

    def prepare_data(self) -> None:
        """Open and check the images; done on first use where nobody calls it."""
        _ = self.source.counts

    def train_batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(mix(self.seed, "images", "batch", step))
        treatment = self._drawn(self.batch_size, generator)
        draws = torch.rand(self.batch_size, TRIES, 4, generator=generator, dtype=torch.float64).tolist()
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        count = self.source.counts[TRAIN]
        chosen = in_epochs(places, count, lambda epoch: mix(self.seed, "images", "order", epoch))
        images = [self.source.augmented(index, some) for index, some in zip(chosen, draws, strict=True)]
        return self._batch(self._scaled(images), treatment, TRAIN, chosen)

    def example_batch(self) -> Batch:
        """Return zeros of a training batch's shapes; nothing is read."""
        images = torch.zeros(self.batch_size, self.source.channels, self.source.size, self.source.size)
        return (images, torch.zeros(self.batch_size, dtype=torch.int64)) if self.labelled else images

    def evaluation_batches(self, split: str) -> Iterator[Batch]:
        one_of("split", split, self.splits)
        total = self.source.counts[split]
        order = cached_permutation(total, mix(self.evaluation_seed, "images", "evaluation", split))[
            : self.num_evaluation_images
        ]
        generator = torch.Generator().manual_seed(mix(self.evaluation_seed, "images", "masks", split))
        # Drawn for all images at once: what is done to an image then does not depend on the size of a batch.
        treatment = self._drawn(len(order), generator)
        for first in range(0, len(order), self.evaluation_batch_size):
            some = slice(first, first + self.evaluation_batch_size)
            chosen = order[some].tolist()
            images = self._scaled([self.source.image(split, index) for index in chosen])
            yield self._batch(images, treatment[some], split, chosen)

    def data_hashes(self) -> dict[str, str]:
        return self.source.data_hashes()

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


class MaskedImageData(ImageData):
    """The same with cells blanked: a batch is (masked, images), (B, C, H, H) both.  Blank pixels are 0, mid-grey.

    Args:
        cell: c.
        mask_ratio: share of the (H/c)^2 cells that are blank, rounded to whole cells.

    The other arguments are those of ``ImageData``.

    Raises:
        ValueError: an argument out of range, cells that do not tile the image, or a ratio that blanks none or all.
    """

    def __init__(
        self,
        source: ImageSource,
        cell: int = 20,
        mask_ratio: float = 0.5,
        batch_size: int = 128,
        evaluation_batch_size: int | None = None,
        num_evaluation_images: int | None = 2_000,
        seed: int = 0,
        evaluation_seed: int = 0,
        data_root: str | Path | None = None,
        cache: str | Path | None = None,
    ) -> None:
        super().__init__(
            source,
            batch_size,
            evaluation_batch_size,
            num_evaluation_images,
            seed,
            evaluation_seed,
            data_root=data_root,
            cache=cache,
        )
        self.size, self.cell = source.size, at_least("cell", cell)
        if self.size % cell:
            raise ValueError(f"cells of {cell} do not tile images of {self.size}: give a cell that divides {self.size}")
        cells = (self.size // cell) ** 2
        if isinstance(mask_ratio, bool) or not isinstance(mask_ratio, int | float) or not 0 < mask_ratio < 1:
            raise ValueError(f"mask_ratio must be a number between 0 and 1, both excluded, got {mask_ratio!r}")
        self.num_cells, self.num_blank = cells, round(mask_ratio * cells)
        if not 0 < self.num_blank < cells:
            raise ValueError(
                f"mask_ratio={mask_ratio} blanks {self.num_blank} of {cells} cells, expected at least one and not all: "
                "give smaller cells or another ratio"
            )

    def example_batch(self) -> Batch:
        images = super().example_batch()
        return images, images

    def blank(self, masked: Tensor) -> Tensor:
        """Return which pixels of masked images (B, C, H, H) are blank, (B, 1, H, H): cells that are 0 throughout."""
        shown = functional.max_pool2d(masked.abs().amax(1, keepdim=True), self.cell)  # (B, 1, H/c, H/c)
        return (shown == 0).repeat_interleave(self.cell, 2).repeat_interleave(self.cell, 3)

    def _drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """Return which cells of ``count`` images are blank, (count, (H/c)^2): equally many of each, all
        choices alike.
        """
        ranks = torch.rand(count, self.num_cells, generator=generator, dtype=torch.float64).argsort(dim=1, stable=True)
        return torch.zeros(count, self.num_cells, dtype=torch.bool).scatter_(1, ranks[:, : self.num_blank], True)

    def _batch(self, images: Tensor, treatment: Tensor, split: str, chosen: Sequence[int]) -> Batch:
        side = self.size // self.cell
        cells = treatment.view(-1, 1, side, side)
        return images.masked_fill(cells.repeat_interleave(self.cell, 2).repeat_interleave(self.cell, 3), 0.0), images
