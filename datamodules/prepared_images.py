"""Images that ``scripts/prepare_data.py`` decoded, in shards of uint8 pixels, with labels beside them or without."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import Array, DataFiles, Manifest, StoredArrays
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL, ImageSource
from paper_repro.datamodules.pixels import CELEBA_SIDE, Pixels, interval, random_resized_crop, resized

IMAGES, LABELS, GREY = "images", "labels", "grey"
"""Names of the arrays, and of the count of grey images, which are stored as three equal channels."""
CLASSES = "classes"
"""The setting that says how many classes there are."""
PIXEL, LABEL = np.dtype(np.uint8), np.dtype("<i4")
PREPARE_CELEBA = "python scripts/prepare_data.py celeba --download"


class ImageManifest(Manifest):
    """Content of a folder of prepared images."""

    kind: ClassVar[str] = "images"

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels of each image."""
        return self.arrays[IMAGES].shape

    @property
    def classes(self) -> int | None:
        """The number of classes; None: the images have no labels."""
        return int(self.settings[CLASSES]) if LABELS in self.arrays else None

    def check_settings(self) -> None:
        super().check_settings()
        images, *others = self.arrays.items()
        right = images[0] == IMAGES and images[1].dtype == PIXEL and len(images[1].shape) == 3
        if not right or others not in ([], [(LABELS, Array(LABEL))]):
            raise ValueError(f"arrays {', '.join(self.arrays)}")
        _ = self.classes


class StoredImages:
    """Images of some splits that were prepared, checked, in the order of their source.

    Args:
        path: the manifest.
        splits: those that are opened; each must have an image.
        stamps: the folder that remembers which files were checked; None: they are checked once a process.
        shape: of the images, (height, width, channels); None: any.

    Raises:
        UsageError: the manifest or a file is missing or not what it must be, or a split has no images.
    """

    def __init__(
        self, path: Path, splits: Sequence[str], stamps: Path | None = None, shape: tuple[int, int, int] | None = None
    ) -> None:
        if not path.is_file():
            raise UsageError(f"{path}: there is no such manifest of images")
        self.manifest = ImageManifest.read(path)
        self.shape, self.classes = self.manifest.shape, self.manifest.classes
        if shape not in (None, self.shape):
            found, wanted = (" x ".join(map(str, sides)) for sides in (self.shape, shape or ()))
            raise UsageError(f"{path}: images of {found}, expected {wanted}")
        self._splits = {split: StoredArrays.opened(self.manifest, path, split, stamps) for split in splits}
        self.counts = {split: len(images) for split, images in self._splits.items()}

    def image(self, split: str, index: int) -> Pixels:
        """Return one image of a split, (H, W, C), read-only; IndexError if there is none."""
        return self._splits[split].item(IMAGES, index)

    def label(self, split: str, index: int) -> int:
        """Return the class of an image, from 0; ValueError if the images have no labels."""
        if self.classes is None:
            raise ValueError("these images have no labels")
        return int(self._splits[split].item(LABELS, index))


class PreparedFiles(ImageSource):
    """The base of sources of prepared images, which are dataclasses.

    ``files`` is ``{manifest: PATH}``, ``prepare`` the command that makes it, named where it is absent or wrong.
    """

    files: Mapping[str, str]
    prepare: str
    shape: tuple[int, int, int]
    """What a prepared image must be, (height, width, channels)."""

    def __post_init__(self) -> None:
        at_least("size", self.size)
        self.found = DataFiles(self.files, self.prepare, ["manifest"])

    @cached_property
    def stored(self) -> StoredImages:
        """The images as they were prepared, checked; UsageError if they are absent or not what they must be."""
        path = self.found.path("manifest", self.data_root)
        with self.found.mended():
            return StoredImages(path, self.splits, self.cache and self.cache / "images", self.shape)

    @property
    def counts(self) -> Mapping[str, int]:
        return self.stored.counts

    def image(self, split: str, index: int) -> Pixels:
        return self.stored.image(split, index)

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
        mirror: whether a training image is mirrored at random.
    """

    splits = (TRAIN, VAL)

    files: Mapping[str, str]
    prepare: str
    size: int = 128
    num_classes: int = 0
    mirror: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shape = (self.size, self.size, 3)
        at_least("num_classes", self.num_classes, 0)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        found = self.stored.classes or 0
        if self.num_classes and found != self.num_classes:
            raise UsageError(
                f"{self.files['manifest']}: images of {found} classes, expected {self.num_classes}: give "
                "data.source.num_classes as many, or prepare the right images"
            )
        return self.stored.counts

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        image = self.image(TRAIN, index)
        return image[:, ::-1] if self.mirror and draws[0][0] < 0.5 else image

    def label(self, split: str, index: int) -> int:
        return self.stored.label(split, index)


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

    files: Mapping[str, str]
    size: int = 120
    scale: Sequence[float] = (0.9, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    prepare: str = PREPARE_CELEBA
    shape = (CELEBA_SIDE, CELEBA_SIDE, 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scale, self.ratio = interval("scale", self.scale, 1.0), interval("ratio", self.ratio)

    def image(self, split: str, index: int) -> Pixels:
        return resized(self.stored.image(split, index), self.size)

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        return random_resized_crop(self.stored.image(TRAIN, index), self.size, self.scale, self.ratio, draws)
