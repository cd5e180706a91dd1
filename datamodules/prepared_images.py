"""Images that ``scripts/prepare_data.py`` decoded, in shards of uint8 pixels, with labels beside them or without.

``PreparedImages`` reads COCO and ImageNet as a source of images.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import Array, Manifest, PreparedManifest, StoredArrays
from paper_repro.datamodules.image_decoding import Pixels
from paper_repro.datamodules.image_sources import TRAIN, VAL, ImageSource

IMAGES, LABELS, GREY = "images", "labels", "grey"
"""Names of the arrays, and of the count of grey images, which are stored as three equal channels."""
CLASSES = "classes"
"""The setting that says how many classes there are."""
PIXEL = np.dtype(np.uint8)
LABEL = np.dtype("<i4")
FACE_SIDE = 178
FACE_SHAPE = (FACE_SIDE, FACE_SIDE, 3)
"""CelebA's images, the only ones of the manifests that did not give a shape."""


class ImageManifest(Manifest):
    """What a folder of prepared images holds."""

    kind: ClassVar[str] = "images"

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels of each image."""
        return self.arrays[IMAGES].shape

    @property
    def classes(self) -> int | None:
        """The number of classes; None: the images have no labels."""
        return int(self.settings[CLASSES]) if LABELS in self.arrays else None

    @classmethod
    def renewed(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the content as it is written today; once the settings stood apart, without the shape, and a total was
        the number of images.
        """
        if "settings" not in content:
            return content
        settings = {**content["settings"], "arrays": {IMAGES: Array(PIXEL, FACE_SHAPE).to_json()}}
        totals = {split: {IMAGES: count} for split, count in content["totals"].items()}
        return {**settings, "totals": totals, "shards": content["shards"]}

    def check_settings(self) -> None:
        super().check_settings()
        images, *others = self.arrays.items()
        right = images[0] == IMAGES and images[1].dtype == PIXEL and len(images[1].shape) == 3
        if not right or others not in ([], [(LABELS, Array(LABEL))]):
            raise ValueError(f"arrays {', '.join(self.arrays)}")
        _ = self.classes


class StoredImages:
    """Images that were prepared: of some splits, checked, in the order of their source.

    Args:
        path: the manifest.
        splits: those that are opened; each must have an image.
        stamps: the folder that remembers which files were checked; None: they are checked once a process.
        shape: what an image must be, (height, width, channels); None: anything.

    Raises:
        UsageError: the manifest or a file is missing or not what it must be, or a split has no images.
    """

    def __init__(
        self, path: Path, splits: Sequence[str], stamps: Path | None = None, shape: tuple[int, int, int] | None = None
    ) -> None:
        if not path.is_file():
            raise UsageError(f"{path}: there is no such manifest of images")
        self.manifest = ImageManifest.read(path)
        if shape not in (None, self.shape):
            found, wanted = (" x ".join(map(str, sides)) for sides in (self.shape, shape or ()))
            raise UsageError(f"{path}: images of {found}, expected {wanted}")
        self._splits = {split: StoredArrays.opened(self.manifest, path, split, stamps) for split in splits}

    @property
    def counts(self) -> dict[str, int]:
        """Images of each split."""
        return {split: len(images) for split, images in self._splits.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """(H, W, C)."""
        return self.manifest.shape

    @property
    def classes(self) -> int | None:
        """The number of classes; None: the images have no labels."""
        return self.manifest.classes

    def image(self, split: str, index: int) -> Pixels:
        """Return one image of a split, (H, W, C); it cannot be written to.

        Raises:
            IndexError: the split has no such image.
        """
        return self._splits[split].item(IMAGES, index)

    def label(self, split: str, index: int) -> int:
        """Return the class of an image, from 0.

        Raises:
            IndexError: the split has no such image.
            ValueError: the images have no labels.
        """
        if self.classes is None:
            raise ValueError("these images have no labels")
        return int(self._splits[split].item(LABELS, index))


class PreparedFiles(ImageSource):
    """What every source of prepared images shares: files found, checked and hashed; a subclass says what an image is.

    Args:
        files, prepare: see ``PreparedManifest``.
        size: H.
        shape: what a prepared image must be, (height, width, channels); None: anything.

    Raises:
        ValueError: other files, or a size below 1.
    """

    def __init__(
        self, files: Mapping[str, str], size: int, prepare: str, shape: tuple[int, int, int] | None = None
    ) -> None:
        self.size = at_least("size", size)
        self.manifest, self.shape = PreparedManifest(files, prepare), shape

    @cached_property
    def stored(self) -> StoredImages:
        """The images as they were prepared, checked.

        Raises:
            UsageError: one is absent or not what the manifest says, or a split has none.
        """
        stamps = None if self.cache is None else self.cache / "images"
        return self.manifest.opened(self.data_root, lambda path: StoredImages(path, self.splits, stamps, self.shape))

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the manifest, which holds those of the files."""
        _ = self.counts
        return self.manifest.hashes(self.data_root)


class PreparedImages(PreparedFiles):
    """Squares of COCO or ImageNet as they were prepared, in splits "train" and "val".

    Args:
        files, prepare: see ``PreparedFiles``.
        size: H, as it was prepared.
        num_classes: of the labels; 0: they are not asked for.
        mirror: whether a training image is mirrored at random.

    Raises:
        ValueError: as ``PreparedFiles``, or a negative number of classes.
    """

    def __init__(
        self, files: Mapping[str, str], prepare: str, size: int = 128, num_classes: int = 0, mirror: bool = False
    ) -> None:
        super().__init__(files, size, prepare, (size, size, 3))
        self.num_classes, self.mirror = at_least("num_classes", num_classes, 0), bool(mirror)

    @property
    def splits(self) -> tuple[str, ...]:
        return (TRAIN, VAL)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        found = self.stored.classes or 0
        if self.num_classes and found != self.num_classes:
            raise UsageError(
                f"{self.manifest.name}: images of {found} classes, expected {self.num_classes}: give "
                "data.source.num_classes as many, or prepare the right images"
            )
        return self.stored.counts

    def image(self, split: str, index: int) -> Pixels:
        return self.stored.image(split, index)

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        image = self.image(TRAIN, index)
        return image[:, ::-1] if self.mirror and draws[0][0] < 0.5 else image

    def label(self, split: str, index: int) -> int:
        return self.stored.label(split, index)
