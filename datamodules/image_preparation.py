"""Encoded images to shards of pixels: COCO, ImageNet and CelebA, from the hub, parquet files or folders of images."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import sha256_of_bytes, sha256_of_file
from paper_repro.datamodules.array_shards import Array, ShardFolder
from paper_repro.datamodules.encoded_files import Labels, Named, Source, encoded, first_of, hash_of_names, write_decoded
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL
from paper_repro.datamodules.pixels import AlignedSquare, CentralSquare, Pixels, UnfitError
from paper_repro.datamodules.preparation import given
from paper_repro.datamodules.prepared_images import CLASSES, GREY, IMAGES, LABEL, LABELS, PIXEL, ImageManifest

SHARD_BYTES, SHARD_FACES = 2**27, 1024
COLUMN, LABEL_COLUMN = "image", "label"
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""What the names of images end with; other files in a folder are passed over."""
PARQUET = ("*.parquet", "*/*.parquet")
"""Where parquet files lie; millions of images may lie deeper."""
VAL_NAMES = ("val", "validation", "valid")
PARTITION, FACES = "list_eval_partition.txt", "img_align_celeba"
PARTITION_SPLITS = {"0": TRAIN, "1": VAL, "2": TEST}
PARTITION_PLACES = (PARTITION, f"Eval/{PARTITION}")
IMAGE_PLACES = (f"{FACES}/{FACES}", FACES, f"Img/{FACES}")


@dataclass(frozen=True)
class Known:
    """A data set that is prepared by its name."""

    hub: str
    """``NAME``, or ``NAME@COMMIT``."""
    expected: str
    """What ``--from`` takes."""
    hub_splits: Mapping[str, Sequence[str]]
    """Our splits and what those of the hub, or of parquet files, may be called."""
    folders: Mapping[str, Sequence[str]]
    """Names of the folder of each split, where there are folders."""
    labelled: bool = False
    """Whether an image has a class, and lies in the folder of that class."""


KNOWN: Mapping[str, Known] = {
    "coco": Known(
        "AbdoTW/COCO_2014",
        "a folder with train2014/ and val2014/, each with images, or with the parquet files of AbdoTW/COCO_2014",
        {TRAIN: ("train",), VAL: ("validation", "valid", "val")},
        {TRAIN: ("train2014", "train"), VAL: ("val2014", "val", "validation")},
    ),
    "imagenet": Known(
        "ILSVRC/imagenet-1k",
        "a folder with train/ and val/, each with a folder of images for each class, or with the parquet files of "
        "ILSVRC/imagenet-1k",
        {TRAIN: ("train",), VAL: ("validation", "valid", "val")},
        {TRAIN: ("train",), VAL: VAL_NAMES},
        True,
    ),
    "celeba": Known(  # eurecom-ds/celeba is another copy
        "flwrlabs/celeba@2d738f56e0e7f925ea36ae7c808ea925264aacec",
        f"a folder with {FACES}/ and {PARTITION}, or with the parquet files of flwrlabs/celeba",
        {TRAIN: ("train",), VAL: ("valid", "validation", "val"), TEST: ("test",)},
        {},
    ),
}


def write(
    folder: Path,
    source: Source,
    crop: CentralSquare | AlignedSquare,
    skip: bool = False,
    shard_images: int | None = None,
    say: Callable[[str], None] = print,
    workers: int = 1,
) -> ImageManifest:
    """Write the crop of every image into shards of ``shard_images`` images, labels behind them.

    ``shard_images`` None: as many as 128 MiB hold.  ``write_decoded`` explains the other arguments and the errors.
    """
    image = Array(PIXEL, (crop.size, crop.size, 3))
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

    shards = ShardFolder(folder, settings, ImageManifest, say)
    return write_decoded(shards, source, size, crop, item, pack, skip, workers)


def load(name: str, path: Path | None = None, hub: str | None = None) -> Source:
    """Return the images of a folder, or of the hub, by split.

    Args:
        name: of the data set, in ``KNOWN``.
        path: a folder with a folder of images, or of classes, for each split, CelebA's official files, or parquet
            files; None: the hub.
        hub: the data set of the hub, ``NAME`` or ``NAME@COMMIT``; None: the usual one.

    Raises:
        UsageError: the folder holds neither, a split, a column or an image is absent, the splits have other classes, or
            the hub does not answer.
    """
    known = KNOWN[name]
    if path is None:
        usual = hub is None or hub == known.hub.partition("@")[0]
        return _from_rows(known, *_hub_rows(known.hub if usual else str(hub), name))
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder; --from takes {known.expected}")
    if not known.folders:
        return _official(path, known)
    if any(any(path.glob(pattern)) for pattern in PARQUET):
        return _from_rows(known, *_parquet_rows(path, name, known.expected))
    found = {split: first_of(path, some) for split, some in known.folders.items()}
    folders = {split: folder for split, folder in found.items() if folder is not None and folder.is_dir()}
    if len(folders) < len(found):
        names = ", ".join(folder.name for folder in folders.values()) or "neither"
        raise UsageError(f"{path}: found {names}, expected {known.expected}")
    settings = {"name": name, "from": "folders of images"}
    if known.labelled:
        return _classes(settings, folders)
    names_of = {split: _names_of_images(folder) for split, folder in folders.items()}
    return Source.of_files({**settings, "names": hash_of_names(names_of)}, folders, names_of)


def _hub_rows(where: str, name: str) -> tuple[Any, str, dict[str, Any]]:
    """Return the rows of each split of a data set of the hub, what they are called, and what they are.

    ``where`` is ``NAME`` or ``NAME@COMMIT``; without a commit the one that it has now is taken.
    """
    from datasets import load_dataset
    from huggingface_hub import HfApi

    place, _, commit = where.partition("@")
    with given(where, "get its files otherwise and say --from DIR; if it asks for an account, run: hf auth login"):
        revision = commit or HfApi().dataset_info(place).sha
        return load_dataset(place, revision=revision), place, {"name": name, "from": place, "revision": revision}


def _parquet_rows(path: Path, name: str, expected: str) -> tuple[Any, str, dict[str, Any]]:
    """Return the rows of each split of a folder of parquet files, what they are called, and what they are."""
    from datasets import load_dataset

    with given(path, f"expected {expected}"):
        rows = load_dataset(str(path))
    sizes = sorted(f"{file.name} {file.stat().st_size}" for file in path.rglob("*.parquet"))
    digest = sha256_of_bytes("\n".join(sizes).encode())
    return rows, str(path), {"name": name, "from": "parquet files", "names_and_sizes": digest}


def _from_rows(known: Known, rows: Any, where: str, settings: Mapping[str, Any]) -> Source:
    """Return the images of a dict of data sets; they stay encoded, so that a damaged one is found where it is decoded.

    Args:
        rows: the data sets by split.
        where: what they are called in messages.
        settings: what they are.
    """
    from datasets import Image

    theirs = {split: next((name for name in names if name in rows), None) for split, names in known.hub_splits.items()}
    for split, name in theirs.items():
        for column in (COLUMN, LABEL_COLUMN) if known.labelled else (COLUMN,):
            if name is None or column not in rows[name].column_names:
                found = "; ".join(f"{other}: {', '.join(rows[other].column_names)}" for other in rows)
                wanted = " or ".join(known.hub_splits[split])
                raise UsageError(f"{where}: expected a split {wanted} with a column {column!r}, found {found}")
    images = {
        split: rows[name].select_columns([COLUMN]).cast_column(COLUMN, Image(decode=False))
        for split, name in theirs.items()
    }

    def read(split: str, places: range) -> Iterator[Named]:
        for place in places:
            yield f"{split} {place}", partial(_content, images[split], place)

    counts = {split: len(some) for split, some in images.items()}
    if not known.labelled:
        return Source(settings, counts, read)
    labels = {split: rows[name].select_columns([LABEL_COLUMN]) for split, name in theirs.items()}

    def read_labels(split: str, places: range) -> list[int | None]:
        found: list[int | None] = labels[split][places.start : places.stop][LABEL_COLUMN]
        return found

    return Source(settings, counts, read, Labels(_count_classes(labels[TRAIN], where), read_labels))


def _count_classes(rows: Any, where: str) -> int:
    """Return how many classes a column of labels has: as many as it names, or up to its largest number."""
    kind = rows.features[LABEL_COLUMN]
    named = getattr(kind, "num_classes", None)
    if isinstance(named, int):
        return named
    found = set(rows[:][LABEL_COLUMN]) - {None}
    if not found or not all(type(one) is int and one >= 0 for one in found):
        raise UsageError(f"{where}: column {LABEL_COLUMN!r} holds {kind}, expected whole numbers from 0")
    return max(found) + 1


def _content(rows: Any, place: int) -> bytes:
    image = rows[place][COLUMN]
    if image is None:
        raise OSError("no image in this row")
    content: bytes = image["bytes"] if image["bytes"] is not None else encoded(Path(image["path"]))
    return content


def _classes(settings: Mapping[str, Any], folders: Mapping[str, Path]) -> Source:
    """Return the images that lie in the folders of classes of each split; labels follow the names of the folders."""
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
    labels: dict[str, list[int]] = {}
    for split, folder in folders.items():
        own = [(f"{one}/{file}", label) for label, one in enumerate(first) for file in _names_of_images(folder / one)]
        names[split], labels[split] = [file for file, _ in own], [label for _, label in own]

    def read_labels(split: str, places: range) -> list[int]:
        return labels[split][places.start : places.stop]

    settings = {**settings, "names": hash_of_names(names)}
    return Source.of_files(settings, folders, names, Labels(len(first), read_labels))


def _names_of_images(folder: Path) -> list[str]:
    found = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise UsageError(f"{folder}: no images in this folder; their names end with {', '.join(SUFFIXES)}")
    return found


def _official(path: Path, known: Known) -> Source:
    """Return CelebA's images, split by the official file, or those of parquet files."""
    partition, images = first_of(path, PARTITION_PLACES), first_of(path, IMAGE_PLACES)
    if partition is None and images is None and any(path.rglob("*.parquet")):
        return _from_rows(known, *_parquet_rows(path, "celeba", known.expected))
    if partition is None or images is None:
        found = ", ".join(str(place.relative_to(path)) for place in (partition, images) if place is not None)
        raise UsageError(f"{path}: found {found or 'neither'}, expected {known.expected}")
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
