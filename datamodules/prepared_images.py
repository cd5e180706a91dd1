"""Images that ``scripts/prepare_data.py`` decoded, in shards of uint8 pixels, with labels beside them or without."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import Array, Manifest, PreparedSource
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL, ImageSource
from paper_repro.datamodules.pixels import CELEBA_SIDE, Pixels, interval, random_resized_crop, resized

IMAGES, LABELS = "images", "labels"
CLASSES = "classes"
"""The setting that says how many classes there are."""
LABEL = np.dtype("<i4")
PREPARE_CELEBA = "python scripts/prepare_data.py celeba --download"


def arrays_of(side: int, labelled: bool) -> dict[str, Array]:
    """Return the arrays of square images, (height, width, channels), and of their labels."""
    return {IMAGES: np.dtype(("|u1", (side, side, 3)))} | ({LABELS: LABEL} if labelled else {})


@dataclass(eq=False)
class PreparedImages(PreparedSource, ImageSource):
    """Squares of COCO or ImageNet as they were prepared, in splits "train" and "val".

    Args:
        files, prepare: see ``PreparedSource``.
        size: H, as it was prepared.
        num_classes: of the labels; 0: they are not asked for.
    """

    splits = (TRAIN, VAL)

    files: Mapping[str, str]
    prepare: str
    size: int = 128
    num_classes: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("size", self.size)
        at_least("num_classes", self.num_classes, 0)

    def check(self, manifest: Manifest) -> None:
        _check_side(manifest, self.size)
        classes = manifest.settings.get(CLASSES, 0)
        if self.num_classes not in (0, classes):
            raise UsageError(
                f"{self.files['manifest']}: images of {classes} classes, expected {self.num_classes}: give "
                "data.source.num_classes as many, or prepare the right images"
            )

    def image(self, split: str, index: int) -> Pixels:
        return self.stored[split].item(IMAGES, index)

    def label(self, split: str, index: int) -> int:
        return int(self.stored[split].item(LABELS, index))


@dataclass(eq=False)
class CelebAImages(PreparedSource, ImageSource):
    """CelebA's official splits "train", "val" and "test" (CET, appendix C).

    Stored is the central square of 178 x 178 pixels of each aligned image.  An evaluated image is that square resized
    to H x H; a training image is a random crop of it, see ``random_resized_crop``.  The paper gives the crop's scale
    and not its ratio: torchvision's 3/4 to 4/3 by default, (1, 1) is the other reading.

    Args:
        files, prepare: see ``PreparedSource``.
        size: H.
        scale: of a crop's area over the square's, uniform between these two.
        ratio: of a crop's width over its height, uniform in its logarithm.
    """

    splits = (TRAIN, VAL, TEST)

    files: Mapping[str, str]
    size: int = 120
    scale: Sequence[float] = (0.9, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    prepare: str = PREPARE_CELEBA

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("size", self.size)
        self.scale, self.ratio = interval("scale", self.scale, 1.0), interval("ratio", self.ratio)

    def check(self, manifest: Manifest) -> None:
        _check_side(manifest, CELEBA_SIDE)

    def image(self, split: str, index: int) -> Pixels:
        return resized(self.stored[split].item(IMAGES, index), self.size)

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        square = self.stored[TRAIN].item(IMAGES, index)
        return random_resized_crop(square, self.size, self.scale, self.ratio, draws)


def _check_side(manifest: Manifest, side: int) -> None:
    if manifest.arrays not in (arrays_of(side, labelled=False), arrays_of(side, labelled=True)):
        found = ", ".join(f"{name} {array}" for name, array in manifest.arrays.items())
        raise UsageError(f"{found} were prepared, expected images of {side} x {side} pixels")
