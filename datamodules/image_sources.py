"""Where images come from, apart from what is done to them: photographs, faces and digits of installed packages.

Letters: N images of a split, H image side, C channels.
"""

import gzip
import io
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import DataSource, hashes_of
from paper_repro.datamodules.pixels import Pixels, decode, packaged, shrunk

TRAIN, VAL, TEST = "train", "val", "test"
DIGIT_TEST_SHARE = 5
"""One digit in five is for testing, the last ones."""
DIGIT_SIDE, DIGIT_WHITE = 8, 16
FACE_SIDE, NUM_FACES, NUM_TRAIN_FACES = 25, 100, 80
PHOTOGRAPHS = {
    TRAIN: """skimage/data/chelsea.png skimage/data/rocket.jpg skimage/data/motorcycle_left.png
        skimage/data/hubble_deep_field.jpg skimage/data/retina.jpg skimage/data/ihc.png
        sklearn/datasets/images/china.jpg""",
    TEST: "skimage/data/astronaut.png skimage/data/coffee.png sklearn/datasets/images/flower.jpg",
}
"""Whole photographs are for training or for testing."""


class ImageSource(DataSource):
    """Square images of one size, uint8, (H, H, C), in splits; 0 is black and ``white`` is white."""

    channels: ClassVar[int] = 3
    white: ClassVar[int] = 255
    num_classes: int = 0
    """How many classes the labels have; 0: there are no labels."""
    size: int
    """H."""

    @abstractmethod
    def image(self, split: str, index: int) -> Pixels:
        """Return one image of a split, (H, H, C)."""

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        """Return one training image, (H, H, C), changed at random: ``draws`` are 10 x 4 uniforms in [0, 1)."""
        return self.image(TRAIN, index)

    def label(self, split: str, index: int) -> int:
        """Return the class of one image, 0 ... ``num_classes`` - 1."""
        raise NotImplementedError


@dataclass(eq=False)
class Photographs(ImageSource):
    """Every square of H x H pixels in ten colour photographs of scikit-image and scikit-learn.

    Seven photographs are for training, three for testing.  A training image is mirrored at random.

    Args:
        size: H.
        shrink: the photographs are made so many times smaller, each pixel the mean of a square.
    """

    size: int = 32
    shrink: int = 2

    def __post_init__(self) -> None:
        at_least("size", self.size)
        at_least("shrink", self.shrink)

    @cached_property
    def photographs(self) -> Mapping[str, list[Pixels]]:
        """Each split's, made smaller, (height, width, 3); UsageError if absent, damaged, or smaller than a square."""
        found = {
            split: [shrunk(decode(packaged(name)), self.shrink) for name in names.split()]
            for split, names in PHOTOGRAPHS.items()
        }
        least = min(min(part.shape[:2]) for parts in found.values() for part in parts)
        if self.size > least:
            raise UsageError(f"data.source.size={self.size}: the photographs hold {least} at most: give less")
        return found

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        image = self.image(TRAIN, index)
        return image[:, ::-1] if draws[0][0] < 0.5 else image

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

    def data_hashes(self) -> dict[str, str]:
        return hashes_of(self.photographs)

    def _places(self, part: Pixels) -> int:
        return (part.shape[0] - self.size + 1) * (part.shape[1] - self.size + 1)


class _SmallSet(ImageSource):
    """Images of one installed package that fit in memory as one array for each split."""

    channels = 1

    @property
    @abstractmethod
    def whole(self) -> Mapping[str, Pixels]:
        """Each split's, (N, side, side, 1); UsageError if they are absent or damaged."""

    @property
    def counts(self) -> Mapping[str, int]:
        return {split: len(images) for split, images in self.whole.items()}

    def image(self, split: str, index: int) -> Pixels:
        images = self.whole[split]
        first = (images.shape[1] - self.size) // 2
        return images[index][first : first + self.size, first : first + self.size]

    def data_hashes(self) -> dict[str, str]:
        return hashes_of(self.whole)


@dataclass(eq=False)
class Faces(_SmallSet):
    """The 100 grey faces of 25 x 25 pixels that scikit-image brings along, of Labeled Faces in the Wild.

    The first 80 are for training, the last 20 for testing.  A training image is cut at a random place and mirrored at
    random; an evaluated one is the centre.

    Args:
        size: H, at most 25.
    """

    size: int = 24

    def __post_init__(self) -> None:
        if at_least("size", self.size) > FACE_SIDE:
            raise ValueError(f"size must be at most {FACE_SIDE}, the faces' own, got {self.size}")

    @cached_property
    def whole(self) -> Mapping[str, Pixels]:
        content = packaged("skimage/data/lfw_subset.npy")
        whole = np.load(io.BytesIO(content), allow_pickle=False)
        faces = np.rint(whole[:NUM_FACES].reshape(NUM_FACES, FACE_SIDE, FACE_SIDE, 1) * 255).astype(np.uint8)
        return {TRAIN: faces[:NUM_TRAIN_FACES], TEST: faces[NUM_TRAIN_FACES:]}

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        side, down, across, _ = draws[0]
        top, left = (int(share * (FACE_SIDE - self.size + 1)) for share in (down, across))
        image = self.whole[TRAIN][index][top : top + self.size, left : left + self.size]
        return image[:, ::-1] if side < 0.5 else image


class Digits(_SmallSet):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 grey pixels, 0 to 16; the label is the digit.

    The first 1,438 are for training, the last 359 for testing.
    """

    white = DIGIT_WHITE
    num_classes = 10
    size = DIGIT_SIDE

    @cached_property
    def whole(self) -> Mapping[str, Pixels]:
        return {split: rows[:, :-1].reshape(-1, DIGIT_SIDE, DIGIT_SIDE, 1) for split, rows in self._rows.items()}

    @cached_property
    def _rows(self) -> Mapping[str, Pixels]:
        """64 pixels and the label of each digit."""
        content = packaged("sklearn/datasets/data/digits.csv.gz")
        rows = np.loadtxt(io.BytesIO(gzip.decompress(content)), delimiter=",").astype(np.uint8)
        border = len(rows) - len(rows) // DIGIT_TEST_SHARE
        return {TRAIN: rows[:border], TEST: rows[border:]}

    def label(self, split: str, index: int) -> int:
        return int(self._rows[split][index, -1])
