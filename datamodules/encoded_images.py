"""Encoded images from the hub's data sets, from parquet files, from folders of images and from folders of classes."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.datamodules.encoded_files import encoded
from paper_repro.datamodules.image_preparation import Labels, Source
from paper_repro.datamodules.image_shards import TRAIN, VAL

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
    return _classes(name, folders) if known.labelled else _images(name, folders)


def first_of(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first of these names that is in a folder."""
    return next((folder / name for name in names if (folder / name).exists()), None)


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

    def read(split: str, places: range) -> Iterator[tuple[str, Callable[[], bytes]]]:
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


def _images(name: str, folders: Mapping[str, Path]) -> Source:
    """Return the images that lie in the folder of each split, in the order of their names."""
    names = {split: _names_of_images(folder) for split, folder in folders.items()}
    return Source(_settings(name, names), _counts(names), _reader(folders, names))


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

    return Source(_settings(name, names), _counts(names), _reader(folders, names), Labels(len(first), read_labels))


def _names_of_images(folder: Path) -> list[str]:
    found = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise UsageError(f"{folder}: no images in this folder; their names end with {', '.join(SUFFIXES)}")
    return found


def _settings(name: str, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return what a folder of images is: the names alone, so that an image may be mended."""
    listing = "\n".join(f"{split}/{file}" for split, some in names.items() for file in some)
    return {"name": name, "from": "folders of images", "names": sha256_of_bytes(os.fsencode(listing))}


def _counts(names: Mapping[str, Sequence[str]]) -> dict[str, int]:
    return {split: len(some) for split, some in names.items()}


def _reader(
    folders: Mapping[str, Path], names: Mapping[str, Sequence[str]]
) -> Callable[[str, range], Iterator[tuple[str, Callable[[], bytes]]]]:
    def read(split: str, places: range) -> Iterator[tuple[str, Callable[[], bytes]]]:
        for place in places:
            yield f"{split}/{names[split][place]}", partial(encoded, folders[split] / names[split][place])

    return read
