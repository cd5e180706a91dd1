"""CelebA's encoded images, from the official files or the hub's, to files of pixels that training maps into memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paper_repro.base.arguments import at_least
from paper_repro.base.errors import UsageError
from paper_repro.base.files import (
    PART_SUFFIX,
    CorruptFileError,
    locked,
    read_regular,
    sha256_of_bytes,
    sha256_of_file,
    write_atomically,
)
from paper_repro.datamodules.celeba import MANIFEST, SHAPE, SIDE, Manifest, Shard, check_shard
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL
from paper_repro.datamodules.pixels import Pixels, UnfitImageError, decode
from paper_repro.datamodules.shard_writing import LOCK, PROGRESS, told_of_the_disk

HUB = "flwrlabs/celeba"
"""eurecom-ds/celeba is another copy."""
REVISIONS = {HUB: "2d738f56e0e7f925ea36ae7c808ea925264aacec"}
COLUMN = "image"
PARTITION = "list_eval_partition.txt"
PARTITION_SPLITS = {"0": TRAIN, "1": VAL, "2": TEST}
PARTITION_PLACES = (PARTITION, f"Eval/{PARTITION}")
IMAGES = "img_align_celeba"
IMAGE_PLACES = (f"{IMAGES}/{IMAGES}", IMAGES, f"Img/{IMAGES}")
HUB_SPLITS = {TRAIN: ("train",), VAL: ("valid", "validation", "val"), TEST: ("test",)}
ALIGNED = (178, 218)
"""Width and height of the aligned images."""
SHARD_IMAGES = 1024
REFUSE, SKIP = ON_CORRUPT = ("refuse", "skip")
MOST_NAMED = 5
MOST_BYTES = 16 << 20
"""The largest encoded image that is read; the pixels of an aligned image are 0.1 MB."""
EXPECTED = f"a folder with {IMAGES}/ and {PARTITION}, or with the parquet files of {HUB}"


@dataclass(frozen=True)
class Source:
    """Encoded images, split."""

    settings: Mapping[str, Any]
    """What they are."""
    counts: Mapping[str, int]
    read: Callable[[str, range], Iterator[tuple[str, Callable[[], bytes]]]]
    """(split, places) to the name of each of these images and what reads it, which may raise OSError."""


def load(path: Path | None, hub: str = HUB) -> Source:
    """Return the images of a folder, or of the hub's data set ``hub`` if ``path`` is None.

    Raises:
        UsageError: the folder holds neither the official files nor parquet files, its split file does not fit its
            images, a split or the column ``image`` is absent, or the hub does not answer.
    """
    if path is None:
        return _hub(hub)
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder; --from takes {EXPECTED}")
    partition, images = _first(path, PARTITION_PLACES), _first(path, IMAGE_PLACES)
    if partition is not None and images is not None:
        return _official(partition, images)
    if partition is None and images is None and any(path.rglob("*.parquet")):
        return _local(path)
    found = ", ".join(str(place.relative_to(path)) for place in (partition, images) if place is not None)
    raise UsageError(f"{path}: found {found or 'neither'}, expected {EXPECTED}")


def _first(folder: Path, places: Sequence[str]) -> Path | None:
    return next((folder / place for place in places if (folder / place).exists()), None)


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
            yield names[split][place], partial(_encoded, images / names[split][place])

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


def _hub(name: str) -> Source:
    from datasets import load_dataset

    revision = REVISIONS.get(name)
    try:
        rows = load_dataset(name, revision=revision)
    except Exception as error:  # whatever the network, the hub's client or a wrong name raises
        raise UsageError(
            f"{name}: the hub did not give it ({error}): get the official files or these otherwise and say --from DIR"
        ) from error
    return _rows(rows, name, {"name": "celeba", "from": name, "revision": revision})


def _local(path: Path) -> Source:
    from datasets import load_dataset

    try:
        rows = load_dataset(str(path))
    except Exception as error:  # the library's own and pyarrow's errors
        raise UsageError(f"{path}: cannot be read: {error}; expected {EXPECTED}") from error
    sizes = sorted(f"{file.name} {file.stat().st_size}" for file in path.rglob("*.parquet"))
    digest = sha256_of_bytes("\n".join(sizes).encode())
    return _rows(rows, str(path), {"name": "celeba", "from": "parquet files", "names_and_sizes": digest})


def _rows(rows: Any, where: str, settings: Mapping[str, Any]) -> Source:
    """Return the rows of a dict of data sets; images stay encoded, so that a damaged one is found where it is
    decoded.
    """
    from datasets import Image

    splits = {}
    for split, valid in HUB_SPLITS.items():
        theirs = next((name for name in valid if name in rows), None)
        if theirs is None or COLUMN not in rows[theirs].column_names:
            found = "; ".join(f"{name}: {', '.join(rows[name].column_names)}" for name in rows)
            raise UsageError(f"{where}: expected a split {' or '.join(valid)} with a column {COLUMN!r}, found {found}")
        splits[split] = rows[theirs].select_columns([COLUMN]).cast_column(COLUMN, Image(decode=False))

    def read(split: str, places: range) -> Iterator[tuple[str, Callable[[], bytes]]]:
        for place in places:
            yield f"{split} {place}", partial(_content, splits[split], place)

    return Source(settings, {split: len(images) for split, images in splits.items()}, read)


def _content(rows: Any, place: int) -> bytes:
    image = rows[place][COLUMN]
    if image is None:
        raise OSError("no image in this row")
    content: bytes = image["bytes"] if image["bytes"] is not None else _encoded(Path(image["path"]))
    return content


def _encoded(path: Path) -> bytes:
    """Read an encoded image, which must be a file of a plausible size: a link may lead to an endless device.

    Raises:
        FileNotFoundError: there is none.
        UnfitImageError: it is something else, or cannot be read; the folder is not named, for the manifest keeps this.
    """
    try:
        return read_regular(path, MOST_BYTES)
    except CorruptFileError as error:
        raise UnfitImageError(str(error).removeprefix(f"{path}: ")) from error


def write(
    folder: Path,
    source: Source,
    skip: bool = False,
    shard_images: int = SHARD_IMAGES,
    say: Callable[[str], None] = print,
) -> Manifest:
    """Decode every image and write its central square into files of ``shard_images`` images.

    Files are written whole or not at all, and noted in ``progress.json``; the manifest comes last.  The same call goes
    on after a kill, makes again what is missing, damaged or had images left out, and ends in the same bytes as one that
    was never disturbed.

    Args:
        skip: leave out images that are missing, damaged, constant or of another size or mode, and note them in the
            manifest; otherwise they are named when all have been looked at, and no manifest is written.

    Raises:
        UsageError: such images are refused, a split is left without any, the folder holds data of other settings, or
            the disk is full.
    """
    settings = {**source.settings, "side": SIDE, "shard_images": at_least("shard_images", shard_images)}
    with told_of_the_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK):
            return _Writing(folder, source, settings, skip, say).run()


class _Writing:
    def __init__(
        self, folder: Path, source: Source, settings: Mapping[str, Any], skip: bool, say: Callable[[str], None]
    ) -> None:
        self.folder, self.source, self.settings, self.say = folder, source, settings, say
        self.skip = skip
        self.refused: dict[str, str] = {}

    def run(self) -> Manifest:
        known = {shard.file: shard for shard in self._known()}
        shards = []
        for split, count in self.source.counts.items():
            size = self.settings["shard_images"]
            for index, first in enumerate(range(0, count, size)):
                name, places = f"{split}-{index:05d}.bin", range(first, min(first + size, count))
                shard = known.get(name)
                if shard is None or shard.skipped or not self._is_whole(shard):  # what was left out may be mended
                    shard = self._write(name, split, places)
                    if shard is None:
                        continue
                    known[name] = shard
                    self._note(PROGRESS, known.values())
                    self.say(f"{name}: images {places.stop:,} of {count:,}, {len(shard.skipped)} left out")
                shards.append(shard)
        if self.refused:
            count = sum(self.source.counts.values())
            raise UsageError(
                f"{len(self.refused):,} of {count:,} images are unfit: {named(self.refused)}; mend them and "
                "give the same command again, or leave them out with --on-corrupt skip"
            )
        manifest = Manifest(self.settings, tuple(shards))
        empty = [split for split, images in manifest.totals().items() if not images]
        if empty:
            raise UsageError(f"no image of split {empty[0]!r} is fit: {named(manifest.skipped)}; get CelebA again")
        self._note(MANIFEST, shards)
        (self.folder / PROGRESS).unlink(missing_ok=True)
        return manifest

    def _write(self, name: str, split: str, places: range) -> Shard | None:
        """Write one file; return None where one of its images is refused."""
        pixels = np.empty((len(places), *SHAPE), np.uint8)
        images, unfit = 0, {}
        for title, read in self.source.read(split, places):
            try:
                pixels[images] = square(read())
                images += 1
            except UnfitImageError as error:
                unfit[title] = str(error)
            except OSError as error:
                unfit[title] = f"cannot be read ({error.strerror or error})"
        if unfit and not self.skip:
            self.refused |= unfit
            return None
        content = pixels[:images].tobytes()
        self._put(name, content)
        return Shard(name, split, images, sha256_of_bytes(content), unfit)

    def _known(self) -> Sequence[Shard]:
        """Return what an earlier call with the same settings finished."""
        path = next((path for name in (PROGRESS, MANIFEST) if (path := self.folder / name).is_file()), None)
        if path is None:
            return ()
        earlier = Manifest.read(path)
        for key in sorted({*earlier.settings, *self.settings}):
            if earlier.settings.get(key) != self.settings.get(key):
                raise UsageError(
                    f"{self.folder} was prepared with {key} {earlier.settings.get(key)}, asked for is "
                    f"{self.settings.get(key)}: remove the folder, or prepare into another with --folder"
                )
        return earlier.shards

    def _is_whole(self, shard: Shard) -> bool:
        try:
            check_shard(self.folder / shard.file, shard, None)
        except UsageError as error:
            self.say(f"{error}; it is made again")
            return False
        return True

    def _note(self, name: str, shards: Iterable[Shard]) -> None:
        self._put(name, Manifest(self.settings, tuple(shards)).to_bytes())

    def _put(self, name: str, content: bytes) -> None:
        """Write a file whole, and remove what a call that was killed left of it."""
        for part in self.folder.glob(f".{name}.*{PART_SUFFIX}"):
            part.unlink()
        write_atomically(self.folder / name, content)


def square(content: bytes) -> Pixels:
    """Return the central 178 x 178 pixels of an encoded aligned image.

    Raises:
        UnfitImageError: it is damaged, constant, or of another size or mode.
    """
    pixels = decode(content, ALIGNED)
    if (pixels == pixels[0, 0]).all():
        raise UnfitImageError(f"every pixel is {tuple(pixels[0, 0].tolist())}, expected a photograph")
    top = (ALIGNED[1] - SIDE) // 2
    return pixels[top : top + SIDE]


def named(unfit: Mapping[str, str]) -> str:
    """Return the first unfit images by name, each with its reason."""
    shown = [f"{name}: {reason}" for name, reason in list(unfit.items())[:MOST_NAMED]]
    return "; ".join(shown) + (f"; and {len(unfit) - MOST_NAMED:,} more" if len(unfit) > MOST_NAMED else "")


def verify(path: Path) -> Manifest:
    """Read every file that a manifest names, again.

    Raises:
        UsageError: what is missing, truncated or altered.
    """
    manifest = Manifest.read(path)
    for shard in manifest.shards:
        check_shard(path.parent / shard.file, shard, None)
    return manifest
