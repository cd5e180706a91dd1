"""Images that ``scripts/prepare_data.py`` decoded into shards, as a source: COCO's, ImageNet's, CelebA's."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.image_decoding import Pixels
from paper_repro.datamodules.image_shards import TRAIN, VAL, StoredImages
from paper_repro.datamodules.image_sources import ImageSource
from paper_repro.datamodules.prepared_manifests import PreparedManifest


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
