"""Encoded images and clips: where they are, read ahead, decoded here or in worker processes, and written to shards."""

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from paper_repro.base.errors import STOPPING, UsageError, at_least, end_with_parent
from paper_repro.base.files import CorruptFileError, read_regular, sha256_of_bytes
from paper_repro.datamodules.array_shards import M, Shard, ShardFolder, held, named
from paper_repro.datamodules.pixels import UnfitError

MOST_BYTES = 2**26
"""The largest encoded file that is read."""
AHEAD = 2
"""Files that are read for each worker before they are asked for."""
T = TypeVar("T")
Item = TypeVar("Item")

Named = tuple[str, Callable[[], bytes]]
"""The name of a file and the function that reads it, which may raise OSError or UnfitError."""


@dataclass(frozen=True)
class Labels:
    """The classes of a source's images."""

    classes: int
    """The number of classes; a label is a number below."""
    read: Callable[[str, range], Sequence[int | None]]
    """(split, places) to the label of each of these images."""


@dataclass(frozen=True)
class Source:
    """Encoded images or clips, split."""

    settings: Mapping[str, Any]
    """The part of the manifest that describes them."""
    counts: Mapping[str, int]
    read: Callable[[str, range], Iterator[Named]]
    """(split, places) to these files."""
    labels: Labels | None = None

    @classmethod
    def of_files(
        cls,
        settings: Mapping[str, Any],
        folders: Mapping[str, Path],
        names: Mapping[str, Sequence[str]],
        labels: Labels | None = None,
        shown: str = "{split}/{name}",
    ) -> "Source":
        """Return the files of these names in the folder of each split; ``shown`` is how messages name a file."""

        def read(split: str, places: range) -> Iterator[Named]:
            for place in places:
                name = names[split][place]
                yield shown.format(split=split, name=name), partial(encoded, folders[split] / name)

        return cls(settings, {split: len(some) for split, some in names.items()}, read, labels)


def hash_of_names(names: Mapping[str, Sequence[str]]) -> str:
    """Return SHA-256 of the names of the files of each split: what a folder is, so that a file may be mended."""
    listing = "\n".join(f"{split}/{name}" for split, some in names.items() for name in some)
    return sha256_of_bytes(os.fsencode(listing))


def encoded(path: Path) -> bytes:
    """Read an encoded file, which must be of a plausible size: a link may lead to an endless device.

    Raises:
        FileNotFoundError: there is none.
        UnfitError: it is something else, or cannot be read; the message leaves out the folder, because the manifest
            keeps it.
    """
    try:
        return read_regular(path, MOST_BYTES)
    except CorruptFileError as error:
        raise UnfitError(str(error).removeprefix(f"{path}: ")) from error


def first_of(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first of these names that is in a folder."""
    return next((folder / name for name in names if (folder / name).exists()), None)


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Start the processes that decode; one worker: this process alone.  A fork would copy held locks."""
    if at_least("workers", workers) == 1:
        yield None
        return
    try:
        with ProcessPoolExecutor(workers, get_context("spawn"), begin_worker) as pool:
            yield pool
    except BrokenExecutor as error:
        raise UsageError(
            "a process that decodes was ended from outside, perhaps because memory was short; what is finished stays: "
            "give the same command again, with fewer --workers"
        ) from error


def begin_worker() -> None:
    """Prepare a process that decodes: it leaves signals to the one that started it, and ends when that one ends."""
    for name in STOPPING:
        signal.signal(name, signal.SIG_IGN)
    end_with_parent()


def _decoded(
    files: Iterable[Named], decode: Callable[[bytes], T], pool: ProcessPoolExecutor | None, ahead: int
) -> Iterator[tuple[str, Callable[[], T]]]:
    """Yield the name of each file in order, and what returns its content or raises why it is unfit."""
    waiting: deque[tuple[str, Callable[[], T]]] = deque()
    for name, read in files:
        result: Future[T] = Future()
        try:
            content = read()
            if pool is not None:
                result = pool.submit(decode, content)
            else:
                result.set_result(decode(content))
        except UnfitError as error:
            result.set_exception(error)
        except OSError as error:
            result.set_exception(UnfitError(f"cannot be read ({error.strerror or error})"))
        waiting.append((name, result.result))
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting


def write_decoded(
    folder: ShardFolder[M],
    source: Source,
    size: int,
    decode: Callable[[bytes], T],
    item: Callable[[int, int | None, T], Item],
    pack: Callable[[list[Item]], tuple[bytes, dict[str, int]]],
    skip: bool = False,
    workers: int = 1,
) -> M:
    """Decode every file of a source and write shards of ``size`` files, then the manifest.

    Shards are written whole or not at all, and noted in ``progress.json``.  The same call goes on after a kill, makes
    again shards that are missing, damaged or had files left out, and ends in the same bytes as an undisturbed call.
    The bytes do not depend on ``workers``.

    Args:
        folder: of the shards.
        source: the files.
        size: files of a shard.
        decode: from the bytes of a file to its content; it is sent to the workers.
        item: from a file's place in its split, its label (0 without labels) and its content to what a shard needs of
            it; like ``decode`` it may raise UnfitError.
        pack: from the items of a shard to its bytes and its counts.
        skip: leave out unfit files and note them in the manifest; otherwise they are named when all have been looked
            at, and no manifest is written.
        workers: processes that decode; 1: this one alone.

    Raises:
        UsageError: unfit files are refused, a split is left without any, the folder holds data of other settings, a
            worker was killed, or the disk is full.
    """
    refused: dict[str, str] = {}
    kind, counts = folder.kind.kind, source.counts

    def make(name: str, split: str, first: int) -> Shard | None:
        places = range(first, min(first + size, counts[split]))
        items, unfit = list[Item](), dict[str, str]()
        found = _decoded(source.read(split, places), decode, pool, AHEAD * workers)
        labels: Sequence[int | None] = [0] * len(places)
        if source.labels is not None:
            labels = source.labels.read(split, places)
        for place, label, (file, content) in zip(places, labels, found, strict=True):
            try:
                items.append(item(place, label, content()))
            except UnfitError as error:
                unfit[file] = str(error)
        if unfit and not skip:
            refused.update(unfit)
            return None
        whole, held_items = pack(items)
        folder.put(name, whole)
        folder.say(f"{name}: {kind} {places.stop:,} of {counts[split]:,}, {len(unfit)} left out")
        return Shard(name, split, held_items, sha256_of_bytes(whole), unfit)

    with held(folder.folder), _pool(workers) as pool:
        shards = folder.in_order(counts, make, lambda _: size)
        if refused:
            raise UsageError(
                f"{len(refused):,} of {sum(counts.values()):,} {kind} are unfit: {named(refused)}; mend them and give "
                "the same command again, or leave them out with --on-corrupt skip"
            )
        manifest = folder.kind(folder.settings, tuple(shards))
        for split in counts:
            if not any(manifest.items(shard) for shard in manifest.of(split)):
                unfit = folder.kind(folder.settings, tuple(manifest.of(split))).skipped
                raise UsageError(f"no {kind} of split {split!r} are fit: {named(unfit)}; get the data again")
        return folder.finish(shards)
