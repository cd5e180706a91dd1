"""Images that ``scripts/prepare_data.py`` decoded, in shards of uint8 pixels, with labels beside them or without."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.array_shards import Array, Manifest, StoredArrays
from paper_repro.datamodules.image_decoding import Pixels

TRAIN, VAL, TEST = "train", "val", "test"
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
