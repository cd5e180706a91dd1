"""CelebA's faces (CET, appendix C), as ``scripts/prepare_data.py celeba`` decoded them.

Each is 178 x 178 x 3 bytes: the central square of the aligned 178 x 218 image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL, ImageSource
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.datamodules.pixels import Pixels, interval, random_resized_crop, resized
from paper_repro.datamodules.prepared_images import FACE_SHAPE, PreparedFiles

PREPARE = "python scripts/prepare_data.py celeba --download"


@dataclass(eq=False)
class CelebAImages(PreparedFiles):
    """CelebA's official splits "train", "val" and "test".

    An evaluated image is its central square resized to H x H; a training image is a random crop of that square, see
    ``random_resized_crop``.  The paper gives the crop's scale and not its ratio: torchvision's 3/4 to 4/3 by default,
    (1, 1) is the other reading.

    Args:
        files, prepare: see ``PreparedFiles``.
        size: H.
        scale: of a crop's area over the square's, uniform between these two.
        ratio: of a crop's width over its height, uniform in its logarithm.
    """

    files: Mapping[str, str]
    size: int = 120
    scale: Sequence[float] = (0.9, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    prepare: str = PREPARE
    shape = FACE_SHAPE

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scale, self.ratio = interval("scale", self.scale, 1.0), interval("ratio", self.ratio)

    @property
    def splits(self) -> tuple[str, ...]:
        return (TRAIN, VAL, TEST)

    def square(self, split: str, index: int) -> Pixels:
        """Return the central square of an image, (178, 178, 3)."""
        return self.stored.image(split, index)

    def image(self, split: str, index: int) -> Pixels:
        return resized(self.square(split, index), self.size)

    def augmented(self, index: int, draws: Sequence[Sequence[float]]) -> Pixels:
        return random_resized_crop(self.square(TRAIN, index), self.size, self.scale, self.ratio, draws)


@dataclass(eq=False, repr=False)
class CelebAData(MaskedImageData):
    """CelebA's images with cells blanked; the arguments are those of ``CelebAImages`` and ``MaskedImageData``."""

    source: ImageSource = field(init=False)
    files: Mapping[str, str] = field(kw_only=True)
    size: int = 120
    scale: Sequence[float] = (0.9, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    prepare: str = PREPARE

    def __post_init__(self) -> None:
        self.source = CelebAImages(self.files, self.size, self.scale, self.ratio, self.prepare)
        super().__post_init__()
