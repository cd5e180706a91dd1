"""Images with cells of theirs blanked, to be completed (CET, section 2 and appendix C), and two stand-ins for CelebA.

A batch is (masked, images), both (B, C, H, H), float32 in [-1, 1].  Letters: B images, C channels, H image side, c side
of a mask's cell, N images of a split.
"""

import gzip
import hashlib
import importlib.util
import io
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from paper_repro.base.arguments import at_least, one_of, positive
from paper_repro.base.errors import UsageError
from paper_repro.base.seeds import mix
from paper_repro.datamodules.counter_based import CounterBasedDataModule, permutation
from paper_repro.datamodules.image_decoding import Pixels, UnfitImageError, decode
from paper_repro.datamodules.image_shards import TEST, TRAIN

TRIES = 10
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
TEST_SHARE, DIGIT_TEST_SHARE = 4, 5
"""For testing: of a photograph's columns one in four, those on the right; of the digits one in five, the last."""
DIGIT_SIDE, DIGIT_WHITE = 8, 16


class MaskedImageData(CounterBasedDataModule):
    """A training batch follows from (``seed``, step) alone: which images, what is done to them, which cells are blank.

    Every image is seen once an epoch, in an order of that epoch's; batches run on across epochs.  An evaluation looks
    at images and masks that follow from ``evaluation_seed`` alone, nothing done to them; fewer of them, or batches of
    another size, are the first of the same.  Blank pixels are 0, mid-grey.

    Args:
        size: H.
        cell: c.
        mask_ratio: share of the (H/c)^2 cells that are blank, rounded to whole cells.
        batch_size: B.
        evaluation_batch_size: None: ``batch_size``.
        num_evaluation_images: of a split, at most; None: all.
        seed: of the training batches.
        evaluation_seed: of what is evaluated.

    Raises:
        ValueError: an argument out of range, cells that do not tile the image, or a ratio that blanks none or all.
    """

    channels: ClassVar[int] = 3
    white: ClassVar[int] = 255
    """The value that is mapped to 1; 0 is mapped to -1."""

    def __init__(
        self,
        size: int = 120,
        cell: int = 20,
        mask_ratio: float = 0.5,
        batch_size: int = 128,
        evaluation_batch_size: int | None = None,
        num_evaluation_images: int | None = 2_000,
        seed: int = 0,
        evaluation_seed: int = 0,
    ) -> None:
        super().__init__()
        self.size, self.cell = at_least("size", size), at_least("cell", cell)
        if size % cell:
            raise ValueError(f"cells of {cell} do not tile images of {size}: give a cell that divides {size}")
        cells = (size // cell) ** 2
        if isinstance(mask_ratio, bool) or not isinstance(mask_ratio, int | float) or not 0 < mask_ratio < 1:
            raise ValueError(f"mask_ratio must be a number between 0 and 1, both excluded, got {mask_ratio!r}")
        self.num_cells, self.num_blank = cells, round(mask_ratio * cells)
        if not 0 < self.num_blank < cells:
            raise ValueError(
                f"mask_ratio={mask_ratio} blanks {self.num_blank} of {cells} cells, expected at least one and not all: "
                "give smaller cells or another ratio"
            )
        self.batch_size = at_least("batch_size", batch_size)
        each = batch_size if evaluation_batch_size is None else evaluation_batch_size
        self.evaluation_batch_size = at_least("evaluation_batch_size", each)
        self.num_evaluation_images = (
            None if num_evaluation_images is None else at_least("num_evaluation_images", num_evaluation_images)
        )
        self.seed = at_least("seed", seed, 0)
        self.evaluation_seed = at_least("evaluation_seed", evaluation_seed, 0)

    @property
    @abstractmethod
    def counts(self) -> Mapping[str, int]:
        """N of each split, opened and checked on first use.

        Raises:
            UsageError: the images are absent or not what they must be.
        """

    @abstractmethod
    def image(self, split: str, index: int) -> Pixels:
        """Return one image of a split, (H, H, C)."""

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        """Return one training image, (H, H, C), changed at random: ``draws`` are 10 times 4 numbers uniform
        in [0, 1).
        """
        return self.image(TRAIN, index)

    @property
    def splits(self) -> tuple[str, ...]:
        return (TRAIN, TEST)

    def prepare_data(self) -> None:
        """Open and check the images; done on first use where nobody calls it."""
        _ = self.counts

    def train_batch(self, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(mix(self.seed, "images", "batch", step))
        blank = self._blank(self.batch_size, generator)
        draws = torch.rand(self.batch_size, TRIES, 4, generator=generator, dtype=torch.float64).tolist()
        chosen = range(step * self.batch_size, (step + 1) * self.batch_size)
        images = [self.augmented(self._trained(place), some) for place, some in zip(chosen, draws, strict=True)]
        return self._masked(images, blank)

    def example_batch(self) -> tuple[Tensor, Tensor]:
        """Return zeros of a training batch's shapes; nothing is read."""
        images = torch.zeros(self.batch_size, self.channels, self.size, self.size)
        return images, images

    def evaluation_batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        one_of("split", split, self.splits)
        total = self.counts[split]
        order = _order(total, mix(self.evaluation_seed, "images", "evaluation", split))[: self.num_evaluation_images]
        generator = torch.Generator().manual_seed(mix(self.evaluation_seed, "images", "masks", split))
        # Drawn for all images at once: which cells are blank then does not depend on the size of a batch.
        blank = self._blank(len(order), generator)
        for first in range(0, len(order), self.evaluation_batch_size):
            some = slice(first, first + self.evaluation_batch_size)
            yield self._masked([self.image(split, index) for index in order[some].tolist()], blank[some])

    def _trained(self, place: int) -> int:
        """Return the training image at a place of the endless sequence of epochs."""
        epoch, row = divmod(place, self.counts[TRAIN])
        return int(_order(self.counts[TRAIN], mix(self.seed, "images", "order", epoch))[row])

    def _blank(self, count: int, generator: torch.Generator) -> Tensor:
        """Return which cells of ``count`` images are blank, (count, (H/c)^2): equally many of each, all
        choices alike.
        """
        ranks = torch.rand(count, self.num_cells, generator=generator, dtype=torch.float64).argsort(dim=1, stable=True)
        return torch.zeros(count, self.num_cells, dtype=torch.bool).scatter_(1, ranks[:, : self.num_blank], True)

    def _masked(self, images: Sequence[Pixels], blank: Tensor) -> tuple[Tensor, Tensor]:
        pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
        pixels = pixels.contiguous().div_(self.white / 2).sub_(1)
        side = self.size // self.cell
        cells = blank.view(-1, 1, side, side)
        return pixels.masked_fill(cells.repeat_interleave(self.cell, 2).repeat_interleave(self.cell, 3), 0.0), pixels


@lru_cache(maxsize=4)
def _order(length: int, seed: int) -> Tensor:
    return permutation(length, seed)


def resized(pixels: Pixels, size: int) -> Pixels:
    """Return the image at ``size`` x ``size``: bilinear with antialiasing, as torchvision's Resize of a PIL image."""
    from PIL import Image

    if pixels.shape[:2] == (size, size):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR))


def random_box(
    height: int,
    width: int,
    scale: Sequence[float],
    ratio: Sequence[float],
    draws: Sequence[Sequence[float]],
) -> tuple[int, int, int, int]:
    """Draw (top, left, height, width) of a crop, distributed as that of torchvision's RandomResizedCrop.

    Its area is uniform in ``scale`` times the image's and the logarithm of width over height uniform in those of
    ``ratio``; the first of the tries that fits is placed uniformly.  If none fits it is the largest central crop whose
    ratio is allowed.  ``draws`` are four numbers, uniform in [0, 1), for each try: area, ratio, top, left.
    """
    low, high = (math.log(end) for end in ratio)
    for one, two, three, four in draws:
        area = height * width * (scale[0] + one * (scale[1] - scale[0]))
        aspect = math.exp(low + two * (high - low))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            return int(three * (height - down + 1)), int(four * (width - across + 1)), down, across
    across, down = width, height
    if width < height * ratio[0]:
        down = round(width / ratio[0])
    elif width > height * ratio[1]:
        across = round(height * ratio[1])
    return (height - down) // 2, (width - across) // 2, down, across


def random_resized_crop(
    pixels: Pixels, size: int, scale: Sequence[float], ratio: Sequence[float], draws: Sequence[Sequence[float]]
) -> Pixels:
    """Return a random crop of an image (height, width, C) at ``size`` x ``size``; arguments as of ``random_box``.

    Cropped first: resized from a box within the whole image, the crop's border would mix in what lies beyond it.
    """
    top, left, height, width = random_box(pixels.shape[0], pixels.shape[1], scale, ratio, draws)
    return resized(pixels[top : top + height, left : left + width], size)


def interval(name: str, value: Sequence[float], most: float = math.inf) -> tuple[float, float]:
    """Return two positive numbers, the lower first, at most ``most``.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise ValueError(f"{name} must be two numbers, the lower first, got {value!r}")
    low, high = (positive(name, end) for end in value)
    if not low <= high <= most:
        limit = f", at most {most:g}" if most < math.inf else ""
        raise ValueError(f"{name} must be two numbers, the lower first{limit}, got {value!r}")
    return low, high


def _sample_file(name: str) -> bytes:
    """Return a data file that scikit-learn ships; it is found without importing scikit-learn."""
    package = importlib.util.find_spec("sklearn")
    places = list(package.submodule_search_locations or ()) if package else []
    path = Path(places[0]) / "datasets" / name if places else None
    if path is None or not path.is_file():
        raise UsageError(f"needs {name}, which scikit-learn ships: run: pip install scikit-learn")
    return path.read_bytes()


class PhotographData(MaskedImageData):
    """Every square of H x H pixels in scikit-learn's two photographs (640 x 427): a stand-in for CelebA.

    Splits "train", squares within the left three quarters, and "test", those within the right one: no pixel is in both.
    The arguments are those of ``MaskedImageData``; ``size`` is at most 160.
    """

    @cached_property
    def photographs(self) -> Mapping[str, list[Pixels]]:
        """Each split's part of both photographs, (height, width, 3).

        Raises:
            UsageError: they are not there or damaged, or no square fits.
        """
        whole = []
        for name in PHOTOGRAPHS:
            try:
                whole.append(decode(_sample_file(f"images/{name}")))
            except UnfitImageError as error:
                raise UsageError(f"scikit-learn's {name}: {error}: install scikit-learn again") from error
        borders = [photograph.shape[1] - photograph.shape[1] // TEST_SHARE for photograph in whole]
        least = min(min(part.shape[0], part.shape[1] // TEST_SHARE) for part in whole)
        if self.size > least:
            raise UsageError(f"data.size={self.size}: the photographs' right quarters hold {least} at most: give less")
        parts = list(zip(whole, borders, strict=True))
        return {TRAIN: [part[:, :border] for part, border in parts], TEST: [part[:, border:] for part, border in parts]}

    @cached_property
    def counts(self) -> Mapping[str, int]:
        return {split: sum(map(self._places, parts)) for split, parts in self.photographs.items()}

    def image(self, split: str, index: int) -> Pixels:
        place = index
        for part in self.photographs[split]:
            if place < self._places(part):
                top, left = divmod(place, part.shape[1] - self.size + 1)
                return part[top : top + self.size, left : left + self.size]
            place -= self._places(part)
        raise IndexError(f"split {split!r} has {self.counts[split]} images, got index {index}")

    def _places(self, part: Pixels) -> int:
        return (part.shape[0] - self.size + 1) * (part.shape[1] - self.size + 1)

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the pixels of each split, as they were decoded here."""
        return {
            split: hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
            for split, parts in self.photographs.items()
        }


class DigitData(MaskedImageData):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 grey pixels, 0 to 16: a small stand-in for CelebA.

    Splits "train", the first 1,438, and "test", the last 359.  The other arguments are those of ``MaskedImageData``.

    Raises:
        ValueError: as ``MaskedImageData``, or a ``size`` other than 8.
    """

    channels = 1
    white = DIGIT_WHITE

    def __init__(
        self,
        size: int = DIGIT_SIDE,
        cell: int = 2,
        mask_ratio: float = 0.5,
        batch_size: int = 32,
        evaluation_batch_size: int | None = None,
        num_evaluation_images: int | None = None,
        seed: int = 0,
        evaluation_seed: int = 0,
    ) -> None:
        if size != DIGIT_SIDE:
            raise ValueError(f"the digits' size is {DIGIT_SIDE}, got {size!r}: leave it out")
        super().__init__(
            size, cell, mask_ratio, batch_size, evaluation_batch_size, num_evaluation_images, seed, evaluation_seed
        )

    @cached_property
    def digits(self) -> Mapping[str, Pixels]:
        """Each split's, (N, 8, 8, 1).

        Raises:
            UsageError: they are not there, or damaged.
        """
        try:
            table = np.loadtxt(io.BytesIO(gzip.decompress(_sample_file("data/digits.csv.gz"))), delimiter=",")
            digits = table[:, :-1].reshape(-1, DIGIT_SIDE, DIGIT_SIDE, 1).astype(np.uint8)
        except (OSError, EOFError, ValueError, IndexError) as error:
            raise UsageError(f"scikit-learn's digits cannot be read ({error}): install scikit-learn again") from error
        border = len(digits) - len(digits) // DIGIT_TEST_SHARE
        return {TRAIN: digits[:border], TEST: digits[border:]}

    @property
    def counts(self) -> Mapping[str, int]:
        return {split: len(digits) for split, digits in self.digits.items()}

    def image(self, split: str, index: int) -> Pixels:
        return self.digits[split][index]

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of each split's pixels."""
        return {split: hashlib.sha256(digits.tobytes()).hexdigest() for split, digits in self.digits.items()}
