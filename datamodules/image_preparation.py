"""Encoded images of any source to shards of pixels that training maps into memory."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paper_repro.base.arguments import at_least
from paper_repro.base.errors import UsageError
from paper_repro.base.files import CorruptFileError, read_regular, sha256_of_bytes
from paper_repro.datamodules.array_shards import Array, Shard
from paper_repro.datamodules.array_writing import ShardFolder, held
from paper_repro.datamodules.image_decoding import Pixels, UnfitImageError, begin_worker
from paper_repro.datamodules.image_shards import CLASSES, GREY, IMAGES, LABEL, LABELS, PIXEL, ImageManifest, named

REFUSE, SKIP = ON_CORRUPT = ("refuse", "skip")
MOST_BYTES = 2**26
"""The largest encoded image that is read."""
SHARD_BYTES = 2**27
AHEAD = 2
"""Images that are read for each worker before they are asked for."""

Read = Callable[[str, range], Iterator[tuple[str, Callable[[], bytes]]]]
"""(split, places) to the name of each of these images and what reads it, which may raise OSError or UnfitImageError."""


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
            UnfitImageError: the image cannot be used.
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
    at_least("workers", workers)
    image = Array(PIXEL, crop.shape)
    size = max(1, SHARD_BYTES // image.item_bytes) if shard_images is None else at_least("shard_images", shard_images)
    arrays = {IMAGES: image.to_json()}
    settings = {**source.settings, **crop.settings, "shard_images": size, "arrays": arrays}
    if source.labels is not None:
        arrays[LABELS] = Array(LABEL).to_json()
        settings[CLASSES] = source.labels.classes
    with held(folder), _executor(workers) as executor:
        try:
            return _Writing(folder, settings, source, crop, skip, executor, AHEAD * workers, say).run()
        except BrokenExecutor as error:
            raise UsageError(
                f"{folder}: a process that decodes was ended from outside, perhaps because memory was short; what is "
                "finished stays: give the same command again, with fewer --workers"
            ) from error


def _executor(workers: int) -> Executor:
    """Return what runs calls: this process, or others that are started anew (a fork copies locks that are held)."""
    if workers == 1:
        return _Here()
    return ProcessPoolExecutor(workers, get_context("spawn"), begin_worker)


class _Here(Executor):
    """Runs a call at once."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _Writing(ShardFolder[ImageManifest]):
    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        source: Source,
        crop: Crop,
        skip: bool,
        executor: Executor,
        ahead: int,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(folder, settings, ImageManifest, say)
        self.source, self.crop, self.skip, self.executor, self.ahead = source, crop, skip, executor, ahead
        self.size: int = settings["shard_images"]
        self.refused: dict[str, str] = {}

    def run(self) -> ImageManifest:
        shards = self.in_order(self.source.counts, self._make, lambda _: self.size)
        if self.refused:
            count = sum(self.source.counts.values())
            raise UsageError(
                f"{len(self.refused):,} of {count:,} images are unfit: {named(self.refused)}; mend them and "
                "give the same command again, or leave them out with --on-corrupt skip"
            )
        for split in self.source.counts:
            own = [shard for shard in shards if shard.split == split]
            if not any(shard.counts[IMAGES] for shard in own):
                unfit = ImageManifest(self.settings, tuple(own)).skipped
                raise UsageError(f"no image of split {split!r} is fit: {named(unfit)}; get the data again")
        return self.finish(shards)

    def _make(self, name: str, split: str, first: int) -> Shard | None:
        """Write one shard; return None where one of its images is refused."""
        places = range(first, min(first + self.size, self.source.counts[split]))
        content, grey, kept, unfit = bytearray(), 0, list[int](), dict[str, str]()
        for (title, cropped), label in zip(self._cropped(split, places), self._labels(split, places), strict=True):
            try:
                pixels, was_grey = cropped.result()
                kept.append(self._checked(label))
            except UnfitImageError as error:
                unfit[title] = str(error)
            except OSError as error:
                unfit[title] = f"cannot be read ({error.strerror or error})"
            else:
                content += pixels.tobytes()
                grey += was_grey
        if unfit and not self.skip:
            self.refused |= unfit
            return None
        if self.source.labels is not None:
            content += np.array(kept, LABEL).tobytes()
        whole = bytes(content)
        self.put(name, whole)
        self.say(f"{name}: images {places.stop:,} of {self.source.counts[split]:,}, {len(unfit)} left out")
        counts = {IMAGES: len(kept)} | ({GREY: grey} if grey else {})
        return Shard(name, split, counts, sha256_of_bytes(whole), unfit)

    def _cropped(self, split: str, places: range) -> Iterator[tuple[str, Future[tuple[Pixels, bool]]]]:
        """Yield the name of each image and its pixels to be, in order; few images are held at a time."""
        waiting: deque[tuple[str, Future[tuple[Pixels, bool]]]] = deque()
        for title, read in self.source.read(split, places):
            waiting.append((title, self._submitted(read)))
            if len(waiting) > self.ahead:
                yield waiting.popleft()
        yield from waiting

    def _submitted(self, read: Callable[[], bytes]) -> Future[tuple[Pixels, bool]]:
        try:
            content = read()
        except (UnfitImageError, OSError) as error:
            failed: Future[tuple[Pixels, bool]] = Future()
            failed.set_exception(error)
            return failed
        return self.executor.submit(self.crop, content)

    def _labels(self, split: str, places: range) -> list[int | None]:
        """Return the label of each image, 0 where there are none.

        Raises:
            UsageError: there are more or fewer labels than images.
        """
        if self.source.labels is None:
            return [0] * len(places)
        found = self.source.labels.read(split, places)
        if len(found) != len(places):
            raise UsageError(
                f"split {split!r}: {len(found):,} labels of {len(places):,} images from number {places.start:,} on: "
                "get the data again"
            )
        return found

    def _checked(self, label: int | None) -> int:
        most = 1 if self.source.labels is None else self.source.labels.classes
        if label is None or not 0 <= label < most:
            raise UnfitImageError(f"label {label}, expected 0 to {most - 1}")
        return label


def encoded(path: Path) -> bytes:
    """Read an encoded image, which must be a file of a plausible size: a link may lead to an endless device.

    Raises:
        FileNotFoundError: there is none.
        UnfitImageError: it is something else, or cannot be read; the folder is not named, for the manifest keeps this.
    """
    try:
        return read_regular(path, MOST_BYTES)
    except CorruptFileError as error:
        raise UnfitImageError(str(error).removeprefix(f"{path}: ")) from error
