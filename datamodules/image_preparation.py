"""Encoded images of any source to shards of pixels that training maps into memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import Array
from paper_repro.datamodules.array_writing import Part, ShardFolder, held, write_parts
from paper_repro.datamodules.encoded_files import Decoders, Named, UnfitError, decoders
from paper_repro.datamodules.image_decoding import Pixels
from paper_repro.datamodules.image_shards import CLASSES, GREY, IMAGES, LABEL, LABELS, PIXEL, ImageManifest

SHARD_BYTES = 2**27
Read = Callable[[str, range], Iterator[Named]]
"""(split, places) to the name of each of these images and what reads it."""


@dataclass(frozen=True)
class Labels:
    """The classes of a source's images."""

    classes: int
    """How many classes there are; a label is a number below."""
    read: Callable[[str, range], list[int | None]]
    """(split, places) to the label of each of these images."""


@dataclass(frozen=True)
class Source:
    """Encoded images, split."""

    settings: Mapping[str, Any]
    """What they are."""
    counts: Mapping[str, int]
    read: Read
    labels: Labels | None = None


class Crop(Protocol):
    """What is kept of an image; it is sent to other processes."""

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
    """Decode every image and write what is kept of it into shards of ``shard_images`` images, labels behind them.

    Shards are written whole or not at all, and noted in ``progress.json``; the manifest comes last.  The same call goes
    on after a kill, makes again what is missing, damaged or had images left out, and ends in the same bytes as one that
    was never disturbed.  Nor do the bytes depend on ``workers``.

    Args:
        folder: that of the shards.
        source: the images.
        crop: what is kept of each.
        skip: leave out images that are unfit, and note them in the manifest; otherwise they are named when all have
            been looked at, and no manifest is written.
        shard_images: images of a shard; None: as many as 128 MiB hold.
        say: is told of each shard that is finished.
        workers: processes that decode; 1: this one alone.

    Raises:
        UsageError: unfit images are refused, a split is left without any, the folder holds data of other settings, a
            worker was killed, or the disk is full.
    """
    image = Array(PIXEL, crop.shape)
    size = max(1, SHARD_BYTES // image.item_bytes) if shard_images is None else at_least("shard_images", shard_images)
    arrays = {IMAGES: image.to_json()}
    settings = {**source.settings, **crop.settings, "shard_images": size, "arrays": arrays}
    if source.labels is not None:
        arrays[LABELS] = Array(LABEL).to_json()
        settings[CLASSES] = source.labels.classes
    with held(folder), decoders(workers) as workers_of:
        part = partial(_part, source, crop, workers_of)
        return write_parts(ShardFolder(folder, settings, ImageManifest, say), source.counts, size, part, skip)


def _part(source: Source, crop: Crop, workers: Decoders, split: str, places: range) -> Part:
    """Return some images of a split, one after the other, and their labels behind them."""
    content, grey, kept, unfit = bytearray(), 0, list[int](), dict[str, str]()
    images = workers.decoded(source.read(split, places), crop)
    for image, label in zip(images, _labels(source, split, places), strict=True):
        try:
            pixels, was_grey = image.get()
            kept.append(_checked(label, 1 if source.labels is None else source.labels.classes))
        except UnfitError as error:
            unfit[image.name] = str(error)
        else:
            content += pixels.tobytes()
            grey += was_grey
    if source.labels is not None:
        content += np.array(kept, LABEL).tobytes()
    return Part(bytes(content), {IMAGES: len(kept)} | ({GREY: grey} if grey else {}), unfit)


def _labels(source: Source, split: str, places: range) -> list[int | None]:
    """Return the label of each image, 0 where there are none.

    Raises:
        UsageError: there are more or fewer labels than images.
    """
    if source.labels is None:
        return [0] * len(places)
    found = source.labels.read(split, places)
    if len(found) != len(places):
        raise UsageError(
            f"split {split!r}: {len(found):,} labels of {len(places):,} images from number {places.start:,} on: "
            "get the data again"
        )
    return found


def _checked(label: int | None, most: int) -> int:
    if label is None or not 0 <= label < most:
        raise UnfitError(f"label {label}, expected 0 to {most - 1}")
    return label
