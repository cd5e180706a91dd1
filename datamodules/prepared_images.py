"""Images that ``scripts/prepare_data.py`` decoded, in shards of uint8 pixels, with labels beside them or without."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import Array, DataFiles, Manifest, StoredArrays
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL, ImageSource
from paper_repro.datamodules.pixels import CELEBA_SIDE, Pixels, interval, random_resized_crop, resized

IMAGES, LABELS, GREY = "images", "labels", "grey"
"""Names of the arrays, and of the count of grey images, which are stored as three equal channels."""
CLASSES = "classes"
"""The setting that says how many classes there are."""
LABEL = np.dtype("<i4")
PREPARE_CELEBA = "python scripts/prepare_data.py celeba --download"


def pixels_of(side: int) -> Array:
    """Return the type and shape of a square image, (height, width, channels)."""
    return np.dtype(("|u1", (side, side, 3)))


class PreparedFiles(ImageSource):
    """The base of sources of prepared images, which are dataclasses.

    ``files`` is ``{manifest: PATH}``, ``prepare`` the command that makes it, named where it is absent or wrong.
    """

    files: Mapping[str, str]
    prepare: str
    side: int
    """The height and width of an image as it was prepared."""

    def __post_init__(self) -> None:
        at_least("size", self.size)
        self.found = DataFiles(self.files, self.prepare, "manifest")

    @cached_property
    def manifest(self) -> Manifest:
        """What was prepared; UsageError if it is absent, or images of another size."""
        path = self.found.path("manifest", self.data_root)
        with self.found.mended():
            manifest = Manifest.read(path)
            images = {IMAGES: pixels_of(self.side)}
            if manifest.arrays not in (images, {**images, LABELS: LABEL}):
                found = ", ".join(f"{name} {array}" for name, array in manifest.arrays.items())
                raise UsageError(f"{path}: {found}, expected images of {self.side} x {self.side} pixels")
        return manifest

    @cached_property
    def stored(self) -> Mapping[str, StoredArrays]:
        """The images of each split, checked; UsageError if a file is missing or altered."""
        manifest, path = self.manifest, self.found.path("manifest", self.data_root)
        with self.found.mended():
            stamps = self.cache and self.cache / "images"
            return {split: StoredArrays.opened(manifest, path, split, stamps) for split in self.splits}

    @property
    def counts(self) -> Mapping[str, int]:
        return {split: len(images) for split, images in self.stored.items()}

    def image(self, split: str, index: int) -> Pixels:
        return self.stored[split].item(IMAGES, index)

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the manifest, which holds those of the files."""
        _ = self.counts
        return self.found.hashes(self.data_root)


@dataclass(eq=False)
class PreparedImages(PreparedFiles):
    """Squares of COCO or ImageNet as they were prepared, in splits "train" and "val".

    Args:
        files, prepare: see ``PreparedFiles``.
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
        self.side = self.size
        at_least("num_classes", self.num_classes, 0)

    @cached_property
    def manifest(self) -> Manifest:
        """What was prepared; UsageError if it is absent, or images of another size or number of classes."""
        manifest = super().manifest
        classes = manifest.settings.get(CLASSES, 0)
        if self.num_classes not in (0, classes):
            raise UsageError(
                f"{self.files['manifest']}: images of {classes} classes, expected {self.num_classes}: give "
                "data.source.num_classes as many, or prepare the right images"
            )
        return manifest

    def label(self, split: str, index: int) -> int:
        return int(self.stored[split].item(LABELS, index))


@dataclass(eq=False)
class CelebAImages(PreparedFiles):
    """CelebA's official splits "train", "val" and "test" (CET, appendix C).

    Stored is the central square of 178 x 178 pixels of each aligned image.  An evaluated image is that square resized
    to H x H; a training image is a random crop of it, see ``random_resized_crop``.  The paper gives the crop's scale
    and not its ratio: torchvision's 3/4 to 4/3 by default, (1, 1) is the other reading.

    Args:
        files, prepare: see ``PreparedFiles``.
        size: H.
        scale: of a crop's area over the square's, uniform between these two.
        ratio: of a crop's width over its height, uniform in its logarithm.
    """

    splits = (TRAIN, VAL, TEST)
    side = CELEBA_SIDE

    files: Mapping[str, str]
    size: int = 120
    scale: Sequence[float] = (0.9, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    prepare: str = PREPARE_CELEBA

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scale, self.ratio = interval("scale", self.scale, 1.0), interval("ratio", self.ratio)

    def image(self, split: str, index: int) -> Pixels:
        return resized(super().image(split, index), self.size)

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        return random_resized_crop(super().image(TRAIN, index), self.size, self.scale, self.ratio, draws)
