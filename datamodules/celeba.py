"""CelebA's faces (CET, appendix C), as ``scripts/prepare_data.py celeba`` decoded them.

Each is 178 x 178 x 3 bytes: the central square of the aligned 178 x 218 image.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from paper_repro.datamodules.image_decoding import Pixels
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.datamodules.pixels import interval, random_resized_crop, resized
from paper_repro.datamodules.prepared_images import FACE_SHAPE, PreparedFiles

PREPARE = "python scripts/prepare_data.py celeba --download"


class CelebAImages(PreparedFiles):
    """CelebA's official splits "train", "val" and "test".

    An evaluated image is its central square resized to H x H; a training image is a random crop of that square, see
    ``random_resized_crop``.  The paper gives the crop's scale and not its ratio: torchvision's 3/4 to 4/3 by default,
    (1, 1) is the other reading.

    Args:
        files: ``{manifest: PATH}``, relative to ``data_root``, $PAPER_REPRO_DATA or the repository's data/.
        size: H.
        scale: of a crop's area over the square's, uniform between these two.
        ratio: of a crop's width over its height, uniform in its logarithm.
        prepare: the command that makes the files, named where they are absent or wrong.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        size: int = 120,
        scale: Sequence[float] = (0.9, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        prepare: str = PREPARE,
    ) -> None:
        super().__init__(files, size, prepare, FACE_SHAPE)
        self.scale, self.ratio = interval("scale", scale, 1.0), interval("ratio", ratio)

    @property
    def splits(self) -> tuple[str, ...]:
        return (TRAIN, VAL, TEST)

    @property
    def counts(self) -> Mapping[str, int]:
        return self.stored.counts

    def square(self, split: str, index: int) -> Pixels:
        """Return the central square of an image, (178, 178, 3)."""
        return self.stored.image(split, index)

    def image(self, split: str, index: int) -> Pixels:
        return resized(self.square(split, index), self.size)

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        return random_resized_crop(self.square(TRAIN, index), self.size, self.scale, self.ratio, draws)


class CelebAData(MaskedImageData):
    """CelebA's images with cells blanked.

    Args:
        data_root: the first folder in which the manifest is looked for.
        cache: folder that remembers which files were checked; None: they are checked once a process.

    The other arguments are those of ``CelebAImages`` and ``MaskedImageData``.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        size: int = 120,
        cell: int = 20,
        mask_ratio: float = 0.5,
        batch_size: int = 128,
        evaluation_batch_size: int | None = None,
        num_evaluation_images: int | None = 2_000,
        scale: Sequence[float] = (0.9, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        seed: int = 0,
        evaluation_seed: int = 0,
        data_root: str | Path | None = None,
        cache: str | Path | None = None,
        prepare: str = PREPARE,
    ) -> None:
        super().__init__(
            CelebAImages(files, size, scale, ratio, prepare),
            cell,
            mask_ratio,
            batch_size,
            evaluation_batch_size,
            num_evaluation_images,
            seed,
            evaluation_seed,
            data_root,
            cache,
        )
