"""Encoded images to shards of pixels: COCO, ImageNet and CelebA, from the hub, parquet files or folders of images."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import sha256_of_bytes, sha256_of_file
from paper_repro.datamodules.array_shards import Array
from paper_repro.datamodules.array_writing import ShardFolder
from paper_repro.datamodules.encoded_files import Labels, Named, Source, UnfitError, encoded, first_of, write_decoded
from paper_repro.datamodules.image_decoding import Pixels, decode
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL
from paper_repro.datamodules.prepared_images import (
    CLASSES,
    FACE_SHAPE,
    FACE_SIDE,
    GREY,
    IMAGES,
    LABEL,
    LABELS,
    PIXEL,
    ImageManifest,
)

SHARD_BYTES = 2**27


class Crop(Protocol):
    """The part of an image that is kept; it is sent to other processes."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, 3)."""

    @property
    def settings(self) -> dict[str, Any]:
        """All that the pixels depend on, beside the image."""

    def __call__(self, content: bytes) -> tuple[Pixels, bool]:
        """Return the pixels of an encoded image, (H, W, 3), and whether a grey image was turned into RGB.

        Raises:
            UnfitError: the image cannot be used.
        """


def write(
    folder: Path,
    source: Source,
    crop: Crop,
    skip: bool = False,
    shard_images: int | None = None,
    say: Callable[[str], None] = print,
    workers: int = 1,
) -> ImageManifest:
    """Write the crop of every image into shards of ``shard_images`` images, labels behind them.

    ``shard_images`` None: as many as 128 MiB hold.  ``write_decoded`` explains the other arguments and the errors.
    """
    image = Array(PIXEL, crop.shape)
    size = max(1, SHARD_BYTES // image.item_bytes) if shard_images is None else at_least("shard_images", shard_images)
    arrays = {IMAGES: image.to_json()}
    settings = {**source.settings, **crop.settings, "shard_images": size, "arrays": arrays}
    classes = None if source.labels is None else source.labels.classes
    if classes is not None:
        arrays[LABELS] = Array(LABEL).to_json()
        settings[CLASSES] = classes

    def item(place: int, label: int | None, image: tuple[Pixels, bool]) -> tuple[bytes, bool, int]:
        if label is None or not 0 <= label < (classes or 1):
            raise UnfitError(f"label {label}, expected 0 to {(classes or 1) - 1}")
        return image[0].tobytes(), image[1], label

    def pack(items: list[tuple[bytes, bool, int]]) -> tuple[bytes, dict[str, int]]:
        labels = b"" if classes is None else np.array([label for _, _, label in items], LABEL).tobytes()
        grey = sum(was_grey for _, was_grey, _ in items)
        content = b"".join([*(pixels for pixels, _, _ in items), labels])
        return content, {IMAGES: len(items)} | ({GREY: grey} if grey else {})

    return write_decoded(
        ShardFolder(folder, settings, ImageManifest, say), source, size, crop, item, pack, skip, workers
    )


COLUMN, LABEL_COLUMN = "image", "label"
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""What the names of images end with; other files in a folder are passed over."""
PARQUET = ("*.parquet", "*/*.parquet")
"""Where parquet files lie; millions of images may lie deeper."""
HUB_SPLITS = {TRAIN: ("train",), VAL: ("validation", "valid", "val")}


@dataclass(frozen=True)
class Known:
    """A data set that is prepared by its name."""

    hub: str
    folders: Mapping[str, Sequence[str]]
    """Names of the folder of each split, where there are folders."""
    labelled: bool
    """Whether an image has a class, and lies in the folder of that class."""


KNOWN: Mapping[str, Known] = {
    "coco": Known("AbdoTW/COCO_2014", {TRAIN: ("train2014", "train"), VAL: ("val2014", "val", "validation")}, False),
    "imagenet": Known("ILSVRC/imagenet-1k", {TRAIN: ("train",), VAL: ("val", "validation", "valid")}, True),
}


def load(name: str, path: Path | None = None, hub: str | None = None) -> Source:
    """Return the images of a folder, or of the hub, split into train and val.

    Args:
        name: of the data set, in ``KNOWN``.
        path: a folder with a folder of images, or of classes, for each split, or with parquet files; None: the hub.
        hub: the data set of the hub, see ``hub_rows``; None: the usual one.

    Raises:
        UsageError: the folder holds neither, a split, a column or an image is absent, the splits have other classes, or
            the hub does not answer.
    """
    known = KNOWN[name]
    label = LABEL_COLUMN if known.labelled else None
    if path is None:
        return from_rows(*hub_rows(hub or known.hub, name), HUB_SPLITS, label)
    inside = "a folder of images for each class" if known.labelled else "images"
    names = " and ".join(f"{some[0]}/" for some in known.folders.values())
    expected = f"a folder with {names}, each with {inside}, or with the parquet files of {known.hub}"
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder; --from takes {expected}")
    if any(any(path.glob(pattern)) for pattern in PARQUET):
        return from_rows(*parquet_rows(path, name, expected), HUB_SPLITS, label)
    found = {split: first_of(path, some) for split, some in known.folders.items()}
    folders = {split: folder for split, folder in found.items() if folder is not None and folder.is_dir()}
    if len(folders) < len(found):
        names = ", ".join(folder.name for folder in folders.values()) or "neither"
        raise UsageError(f"{path}: found {names}, expected {expected}")
    if known.labelled:
        return _classes(name, folders)
    names_of = {split: _names_of_images(folder) for split, folder in folders.items()}
    return Source.of_files(_settings(name, names_of), folders, names_of)


def hub_rows(where: str, name: str) -> tuple[Any, str, dict[str, Any]]:
    """Return the rows of each split of a data set of the hub, what they are called, and what they are.

    Args:
        where: the data set of the hub, ``NAME`` or ``NAME@COMMIT``; without a commit the one that it has now is taken,
            and noted in what the rows are.
        name: what the data are called here.

    Raises:
        UsageError: the hub does not give it.
    """
    from datasets import load_dataset
    from huggingface_hub import HfApi

    place, _, commit = where.partition("@")
    try:
        revision = commit or HfApi().dataset_info(place).sha
        rows = load_dataset(place, revision=revision)
    except Exception as error:  # whatever the network, the hub's client or a wrong name raises
        raise UsageError(
            f"{where}: the hub did not give it ({error}): get its files otherwise and say --from DIR; if it asks for "
            "an account, run: hf auth login"
        ) from error
    return rows, place, {"name": name, "from": place, "revision": revision}


def parquet_rows(path: Path, name: str, expected: str) -> tuple[Any, str, dict[str, Any]]:
    """Return the rows of each split of a folder of parquet files, what they are called, and what they are.

    Raises:
        UsageError: they cannot be read.
    """
    from datasets import load_dataset

    try:
        rows = load_dataset(str(path))
    except Exception as error:  # the library's own and pyarrow's errors
        raise UsageError(f"{path}: cannot be read: {error}; expected {expected}") from error
    sizes = sorted(f"{file.name} {file.stat().st_size}" for file in path.rglob("*.parquet"))
    digest = sha256_of_bytes("\n".join(sizes).encode())
    return rows, str(path), {"name": name, "from": "parquet files", "names_and_sizes": digest}


def from_rows(
    rows: Any, where: str, settings: Mapping[str, Any], splits: Mapping[str, Sequence[str]], label: str | None = None
) -> Source:
    """Return the images of a dict of data sets; they stay encoded, so that a damaged one is found where it is decoded.

    Args:
        rows: the data sets by split.
        where: what they are called in messages.
        settings: what they are.
        splits: our splits and what theirs may be called.
        label: the column of labels; None: there is none.

    Raises:
        UsageError: a split or a column is absent, or its labels are no whole numbers.
    """
    from datasets import Image

    columns = [COLUMN] if label is None else [COLUMN, label]
    theirs = {split: next((name for name in names if name in rows), None) for split, names in splits.items()}
    for split, name in theirs.items():
        for column in columns:
            if name is None or column not in rows[name].column_names:
                found = "; ".join(f"{other}: {', '.join(rows[other].column_names)}" for other in rows)
                wanted = " or ".join(splits[split])
                raise UsageError(f"{where}: expected a split {wanted} with a column {column!r}, found {found}")
    images = {
        split: rows[name].select_columns([COLUMN]).cast_column(COLUMN, Image(decode=False))
        for split, name in theirs.items()
    }

    def read(split: str, places: range) -> Iterator[Named]:
        for place in places:
            yield f"{split} {place}", partial(_content, images[split], place)

    counts = {split: len(some) for split, some in images.items()}
    if label is None:
        return Source(settings, counts, read)
    labels = {split: rows[name].select_columns([label]) for split, name in theirs.items()}

    def read_labels(split: str, places: range) -> list[int | None]:
        found: list[int | None] = labels[split][places.start : places.stop][label]
        return found

    return Source(settings, counts, read, Labels(_count_classes(labels[TRAIN], label, where), read_labels))


def _count_classes(rows: Any, label: str, where: str) -> int:
    """Return how many classes a column of labels has: as many as it names, or up to its largest number."""
    named = getattr(rows.features[label], "num_classes", None)
    if isinstance(named, int):
        return named
    found = set(rows[:][label]) - {None}
    if not found or not all(type(one) is int and one >= 0 for one in found):
        raise UsageError(f"{where}: column {label!r} holds {rows.features[label]}, expected whole numbers from 0")
    return max(found) + 1


def _content(rows: Any, place: int) -> bytes:
    image = rows[place][COLUMN]
    if image is None:
        raise OSError("no image in this row")
    content: bytes = image["bytes"] if image["bytes"] is not None else encoded(Path(image["path"]))
    return content


def _classes(name: str, folders: Mapping[str, Path]) -> Source:
    """Return the images that lie in the folders of classes of each split; labels follow the names of the folders.

    Raises:
        UsageError: the splits have other classes, or a class has no images.
    """
    classes = {
        split: sorted(path.name for path in folder.iterdir() if path.is_dir()) for split, folder in folders.items()
    }
    first = classes[TRAIN]
    for split, found in classes.items():
        odd = sorted(set(found) ^ set(first))
        if odd or not found:
            raise UsageError(
                f"{folders[split]}: {len(found):,} folders of classes, {folders[TRAIN]} has {len(first):,} "
                f"(one of them alone has {odd[0] if odd else 'none'}): expected the same classes in both"
            )
    names: dict[str, list[str]] = {}
    labels: dict[str, list[int | None]] = {}
    for split, folder in folders.items():
        own = [(f"{one}/{file}", label) for label, one in enumerate(first) for file in _names_of_images(folder / one)]
        names[split], labels[split] = [file for file, _ in own], [label for _, label in own]

    def read_labels(split: str, places: range) -> list[int | None]:
        return labels[split][places.start : places.stop]

    return Source.of_files(_settings(name, names), folders, names, Labels(len(first), read_labels))


def _names_of_images(folder: Path) -> list[str]:
    found = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise UsageError(f"{folder}: no images in this folder; their names end with {', '.join(SUFFIXES)}")
    return found


def _settings(name: str, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return what a folder of images is: the names alone, so that an image may be mended."""
    listing = "\n".join(f"{split}/{file}" for split, some in names.items() for file in some)
    return {"name": name, "from": "folders of images", "names": sha256_of_bytes(os.fsencode(listing))}


CELEBA_HUB = "flwrlabs/celeba"
"""eurecom-ds/celeba is another copy."""
CELEBA_REVISIONS = {CELEBA_HUB: "2d738f56e0e7f925ea36ae7c808ea925264aacec"}
PARTITION = "list_eval_partition.txt"
PARTITION_SPLITS = {"0": TRAIN, "1": VAL, "2": TEST}
PARTITION_PLACES = (PARTITION, f"Eval/{PARTITION}")
FACES = "img_align_celeba"
IMAGE_PLACES = (f"{FACES}/{FACES}", FACES, f"Img/{FACES}")
CELEBA_SPLITS = {TRAIN: ("train",), VAL: ("valid", "validation", "val"), TEST: ("test",)}
ALIGNED = (FACE_SIDE, 218)
"""Width and height of the aligned images."""
SHARD_FACES = 1024
EXPECTED = f"a folder with {FACES}/ and {PARTITION}, or with the parquet files of {CELEBA_HUB}"


def load_celeba(path: Path | None, hub: str | None = None) -> Source:
    """Return the images of a folder, or of the hub's data set ``hub`` if ``path`` is None.

    Raises:
        UsageError: the folder holds neither the official files nor parquet files, its split file does not fit its
            images, a split or the column ``image`` is absent, or the hub does not answer.
    """
    if path is None:
        where = hub or CELEBA_HUB
        return from_rows(
            *hub_rows(f"{where}@{CELEBA_REVISIONS[where]}" if where in CELEBA_REVISIONS else where, "celeba"),
            CELEBA_SPLITS,
        )
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder; --from takes {EXPECTED}")
    partition, images = first_of(path, PARTITION_PLACES), first_of(path, IMAGE_PLACES)
    if partition is not None and images is not None:
        return _official(partition, images)
    if partition is None and images is None and any(path.rglob("*.parquet")):
        return from_rows(*parquet_rows(path, "celeba", EXPECTED), CELEBA_SPLITS)
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

    settings = {"name": "celeba", "from": "official files", "partition": sha256_of_file(partition)}
    return Source.of_files(settings, dict.fromkeys(names, images), names, shown="{name}")


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


def write_celeba(folder: Path, source: Source, skip: bool = False, **options: Any) -> ImageManifest:
    """Write the central square of every image, see ``write``."""
    return write(folder, source, AlignedSquare(), skip, **{"shard_images": SHARD_FACES, **options})
