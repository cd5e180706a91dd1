"""CelebA's encoded images, from the official files or the hub's: where they are, how they are split, and their crop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_file
from paper_repro.datamodules import image_preparation
from paper_repro.datamodules.encoded_files import UnfitError, encoded
from paper_repro.datamodules.encoded_images import first_of, from_rows, hub_rows, parquet_rows
from paper_repro.datamodules.image_decoding import Pixels, decode
from paper_repro.datamodules.image_preparation import Source
from paper_repro.datamodules.image_shards import FACE_SHAPE, FACE_SIDE, TEST, TRAIN, VAL, ImageManifest

HUB = "flwrlabs/celeba"
"""eurecom-ds/celeba is another copy."""
REVISIONS = {HUB: "2d738f56e0e7f925ea36ae7c808ea925264aacec"}
PARTITION = "list_eval_partition.txt"
PARTITION_SPLITS = {"0": TRAIN, "1": VAL, "2": TEST}
PARTITION_PLACES = (PARTITION, f"Eval/{PARTITION}")
IMAGES = "img_align_celeba"
IMAGE_PLACES = (f"{IMAGES}/{IMAGES}", IMAGES, f"Img/{IMAGES}")
HUB_SPLITS = {TRAIN: ("train",), VAL: ("valid", "validation", "val"), TEST: ("test",)}
ALIGNED = (FACE_SIDE, 218)
"""Width and height of the aligned images."""
SHARD_IMAGES = 1024
EXPECTED = f"a folder with {IMAGES}/ and {PARTITION}, or with the parquet files of {HUB}"


def load(path: Path | None, hub: str | None = None) -> Source:
    """Return the images of a folder, or of the hub's data set ``hub`` if ``path`` is None.

    Raises:
        UsageError: the folder holds neither the official files nor parquet files, its split file does not fit its
            images, a split or the column ``image`` is absent, or the hub does not answer.
    """
    if path is None:
        where = hub or HUB
        return from_rows(
            *hub_rows(f"{where}@{REVISIONS[where]}" if where in REVISIONS else where, "celeba"), HUB_SPLITS
        )
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder; --from takes {EXPECTED}")
    partition, images = first_of(path, PARTITION_PLACES), first_of(path, IMAGE_PLACES)
    if partition is not None and images is not None:
        return _official(partition, images)
    if partition is None and images is None and any(path.rglob("*.parquet")):
        return from_rows(*parquet_rows(path, "celeba", EXPECTED), HUB_SPLITS)
    found = ", ".join(str(place.relative_to(path)) for place in (partition, images) if place is not None)
    raise UsageError(f"{path}: found {found or 'neither'}, expected {EXPECTED}")


def _official(partition: Path, images: Path) -> Source:
    names = _partition(partition)
    listed = {name for some in names.values() for name in some}
    beyond = sorted(file.name for file in images.iterdir() if file.suffix == ".jpg" and file.name not in listed)
    if beyond:
        raise UsageError(
            f"{partition}: lists {len(listed):,} images, not {len(beyond):,} that lie in {images} ({beyond[0]} ...): "
            "get the whole split file"
        )

    def read(split: str, places: range) -> Iterator[tuple[str, Callable[[], bytes]]]:
        for place in places:
            yield names[split][place], partial(encoded, images / names[split][place])

    settings = {"name": "celeba", "from": "official files", "partition": sha256_of_file(partition)}
    return Source(settings, {split: len(some) for split, some in names.items()}, read)


def _partition(path: Path) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {split: [] for split in PARTITION_SPLITS.values()}
    seen = set()
    for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1):
        words = line.split()
        if len(words) != 2 or words[1] not in PARTITION_SPLITS or Path(words[0]).name != words[0] or words[0] in seen:
            raise UsageError(
                f"{path}:{number}: {line[:40]!r}, expected an image, named once, and its split, 0, 1 or 2: get the "
                "official file"
            )
        seen.add(words[0])
        names[PARTITION_SPLITS[words[1]]].append(words[0])
    for split, some in names.items():
        if not some:
            raise UsageError(f"{path}: no image of split {split!r}: get the official file")
    return names


@dataclass(frozen=True)
class AlignedSquare:
    """The central 178 x 178 pixels of an aligned photograph of 178 x 218."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return FACE_SHAPE

    @property
    def settings(self) -> dict[str, Any]:
        """All that the pixels depend on, beside the image."""
        return {"side": FACE_SIDE}

    def __call__(self, content: bytes) -> tuple[Pixels, bool]:
        """Return the square of an encoded image, (178, 178, 3); no grey image is turned into RGB.

        Raises:
            UnfitError: the image is damaged, constant, or of another size or mode.
        """
        pixels = decode(content, ALIGNED)
        if (pixels == pixels[0, 0]).all():
            raise UnfitError(f"every pixel is {tuple(pixels[0, 0].tolist())}, expected a photograph")
        top = (ALIGNED[1] - FACE_SIDE) // 2
        return pixels[top : top + FACE_SIDE], False


def write(folder: Path, source: Source, skip: bool = False, **options: Any) -> ImageManifest:
    """Write the central square of every image, see ``image_preparation.write``."""
    return image_preparation.write(folder, source, AlignedSquare(), skip, **{"shard_images": SHARD_IMAGES, **options})
