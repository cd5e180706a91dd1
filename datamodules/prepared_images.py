"""Images that ``scripts/prepare_data.py`` decoded into shards, as a source: COCO's, ImageNet's, CelebA's."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from paper_repro.base.arguments import at_least
from paper_repro.base.data_files import absent, find_data
from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_file
from paper_repro.datamodules.image_decoding import Pixels
from paper_repro.datamodules.image_shards import TRAIN, VAL, StoredImages
from paper_repro.datamodules.image_sources import ImageSource


class PreparedFiles(ImageSource):
    """What every source of prepared images shares: files found, checked and hashed; a subclass says what an image is.

    Args:
        files: ``{manifest: PATH}``, relative to ``data_root``, $PAPER_REPRO_DATA or the repository's data/.
        size: H.
        prepare: the command that makes the files, named where they are absent or wrong.
        shape: what a prepared image must be, (height, width, channels); None: anything.

    Raises:
        ValueError: other files, or a size below 1.
    """

    def __init__(
        self, files: Mapping[str, str], size: int, prepare: str, shape: tuple[int, int, int] | None = None
    ) -> None:
        self.files, self.size = dict(files), at_least("size", size)
        if set(self.files) != {"manifest"}:
            raise ValueError(f"files must name manifest, got {', '.join(self.files) or 'none'}")
        self.prepare, self.shape = prepare, shape

    @cached_property
    def stored(self) -> StoredImages:
        """The images as they were prepared, checked.

        Raises:
            UsageError: one is absent or not what the manifest says, or a split has none.
        """
        path = self._manifest()
        try:
            return StoredImages(path, self.splits, None if self.cache is None else self.cache / "images", self.shape)
        except UsageError as error:
            raise UsageError(f"{error}; run: {self.prepare}") from error

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the manifest, which holds those of the files."""
        _ = self.counts
        return {"manifest": sha256_of_file(self._manifest())}

    def _manifest(self) -> Path:
        path = find_data(self.files["manifest"], self.data_root)
        if path is None or not path.is_file():
            raise UsageError(absent(self.files["manifest"], self.data_root, self.prepare))
        return path


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
                f"{self.files['manifest']}: images of {found} classes, expected {self.num_classes}: give "
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
