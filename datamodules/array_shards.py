"""Arrays of any type in memory-mapped files, with a manifest that says what the files must be.

A folder holds ``manifest.json`` and the files (shards) of each split, in order.  A shard holds one or more arrays with
equally many items: all items of the first array, then all items of the second.  An image and its label are therefore
always in the same file, and the size of the file tells whether there are as many labels as images.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from paper_repro.base.errors import UsageError
from paper_repro.base.files import absent, cached, find_data
from paper_repro.base.identity import data_hash

MANIFEST = "manifest.json"
FORMAT = 1
CHUNK_BYTES = 2**23
"""Bytes that are hashed at a time."""
TRUSTED_SECONDS = 24 * 3600.0
"""How long a file that was read whole is trusted by its size and time of change; then it is read again."""
MOST_MAPS = 512
"""Files that one process keeps open; the system usually allows 1,024."""
MOST_NAMED = 5
NUMBERS = "biuf"
"""NumPy's letters for the types that an array may have: booleans, whole numbers and floats."""

T = TypeVar("T")
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Array:
    """Type and shape of one item of an array.

    Raises:
        ValueError: the type is not one of numbers, or a side is not positive.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype.kind not in NUMBERS or not all(isinstance(side, int) and side > 0 for side in self.shape):
            raise ValueError(f"an array of {self.dtype.str} {self.shape}")

    @property
    def item_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype.str, "shape": list(self.shape)}


@dataclass(frozen=True)
class Shard:
    """One file, as the manifest describes it."""

    file: str
    split: str
    counts: Mapping[str, int]
    """Numbers of what it holds, by name; the name of the manifest's first array gives the number of items."""
    sha256: str
    skipped: Mapping[str, str] | None = None
    """Items of the source that were left out, by name, and why; None: nothing of this kind can be left out."""

    def to_json(self) -> dict[str, Any]:
        skipped = {} if self.skipped is None else {"skipped": self.skipped}
        return {"file": self.file, "split": self.split, **self.counts, "sha256": self.sha256, **skipped}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return the shard of a manifest's entry.

        Raises:
            ValueError, KeyError, TypeError: the entry describes no shard.
        """
        rest = dict(entry)
        shard = cls(rest.pop("file"), rest.pop("split"), rest, rest.pop("sha256"), rest.pop("skipped", None))
        if len(Path(shard.file).parts) != 1:
            raise ValueError(f"a shard called {shard.file!r}")
        if not all(type(count) is int and count >= 0 for count in shard.counts.values()):
            raise ValueError(f"a shard of {dict(shard.counts)}")
        return shard


@dataclass(frozen=True)
class Content:
    """What a file was found to hold."""

    sha256: str
    largest: int | None
    """The largest of its numbers, where they were asked for."""


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards holds."""

    kind: ClassVar[str] = "shards"
    """What messages call the shards."""
    scanned: ClassVar[np.dtype[Any] | None] = None
    """The type of the numbers of which the largest is looked for; None: it is not."""

    settings: Mapping[str, Any]
    """All that the content depends on: source, sizes, and ``arrays``, the type and shape of each array."""
    shards: tuple[Shard, ...]

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays of each shard by name, in the order in which a file holds them.

        Raises:
            ValueError, KeyError, TypeError: the settings describe no arrays.
        """
        found = self.settings["arrays"].items()
        return {name: Array(np.dtype(one["dtype"]), tuple(one["shape"])) for name, one in found}

    @property
    def skipped(self) -> dict[str, str]:
        """All that was left out, by name, and why."""
        return {name: reason for shard in self.shards for name, reason in (shard.skipped or {}).items()}

    def of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def items(self, shard: Shard) -> int:
        """Return the number of items of each array of a shard."""
        return shard.counts[next(iter(self.arrays))]

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the sum of each count over each split."""
        found: dict[str, dict[str, int]] = {}
        for shard in self.shards:
            total = found.setdefault(shard.split, {})
            for name, count in shard.counts.items():
                total[name] = total.get(name, 0) + count
        return found

    def summary(self) -> list[str]:
        """Return a line on each split, and one on what was left out."""
        lines = [
            f"{split}: {', '.join(f'{count:,} {name}' for name, count in total.items())}"
            for split, total in self.totals().items()
        ]
        return [*lines, f"left out {len(self.skipped):,}: {named(self.skipped)}"] if self.skipped else lines

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON; for the same content the bytes must stay the same for ever.

        The SHA-256 of a manifest is part of the id of each cell that was trained on the data.
        """
        shards = [shard.to_json() for shard in self.shards]
        content = {"format": FORMAT, **self.settings, "totals": self.totals(), "shards": shards}
        return json.dumps(content, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the manifest in a file.

        Raises:
            UsageError: it is no manifest of this kind, or one of another format.
        """
        manifest = None
        try:
            content = json.loads(path.read_bytes())
            version = content.pop("format")
            if version == FORMAT:
                content = dict(cls.renewed(content))
                totals = content.pop("totals")
                shards = tuple(Shard.from_json(entry) for entry in content.pop("shards"))
                manifest = cls(content, shards)
                if totals != manifest.totals():
                    raise ValueError(f"its totals are {totals}, those of its shards {manifest.totals()}")
                manifest.check_settings()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}: not a manifest of {cls.kind} ({error!r}): prepare the data again") from error
        if manifest is None:
            raise UsageError(f"{path}: manifest of format {version!r}, expected {FORMAT}: prepare the data again")
        return manifest

    @classmethod
    def renewed(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return settings, totals and shards of an older manifest as they are written today."""
        return content

    def check_settings(self) -> None:
        """Look at all that is read from the settings and the counts later.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: something is missing, or not what it must be.
        """
        if not self.arrays:
            raise ValueError("no arrays")
        for shard in self.shards:
            self.items(shard)

    def check(self, folder: Path, shard: Shard, stamps: Path | None = None) -> Content:
        """Compare a file with what the manifest says: its size always, its content once.

        What was found is kept in this process, and for a day in the folder ``stamps`` under the file's path, size and
        time of change.

        Raises:
            UsageError: the file is missing, truncated or altered.
        """
        path, items = folder / shard.file, self.items(shard)
        size, expected = size_of(path), items * sum(array.item_bytes for array in self.arrays.values())
        if size != expected:
            held = ", ".join(_in_words(items, name, array) for name, array in self.arrays.items())
            raise UsageError(
                f"{path}: this shard has {size:,} bytes, expected {expected:,}, {held}: it is truncated or altered"
            )
        found = content_of(path, self.scanned, stamps)
        if found.sha256 != shard.sha256:
            raise UsageError(
                f"{path}: this shard is altered: its SHA-256 is {found.sha256[:12]}..., "
                f"the manifest says {shard.sha256[:12]}..."
            )
        return found

    def verify(self, folder: Path) -> None:
        """Read every shard again.

        Raises:
            UsageError: one is missing, truncated or altered.
        """
        for shard in self.shards:
            self.check(folder, shard)


def named(unfit: Mapping[str, str]) -> str:
    """Return the first of what is unfit by name, each with its reason."""
    shown = [f"{name}: {reason}" for name, reason in list(unfit.items())[:MOST_NAMED]]
    return "; ".join(shown) + (f"; and {len(unfit) - MOST_NAMED:,} more" if len(unfit) > MOST_NAMED else "")


def _in_words(items: int, name: str, array: Array) -> str:
    return f"{items:,} {name}" + (f" of {' x '.join(map(str, array.shape))}" if array.shape else "")


def size_of(path: Path) -> int:
    """Return the size of a shard's file.

    Raises:
        UsageError: there is no such file.
    """
    if not path.is_file():
        raise UsageError(f"{path}: this shard is missing")
    return path.stat().st_size


def stamp_of(path: Path) -> str:
    """Return the SHA-256 of a file's path, size and time of change, under which what was found in it is kept."""
    status = path.stat()
    return hashlib.sha256(f"{path.resolve()}/{status.st_size}/{status.st_mtime_ns}".encode()).hexdigest()


def content_of(path: Path, scanned: np.dtype[Any] | None, stamps: Path | None) -> Content:
    """Return what a file holds; arguments as in ``Manifest``."""
    return _content_once(path, stamp_of(path), scanned, stamps)


@lru_cache(maxsize=4096)
def _content_once(path: Path, stamp: str, scanned: np.dtype[Any] | None, stamps: Path | None) -> Content:
    if stamps is None:
        return _content(path, scanned)
    name = stamps / f"shard-{stamp[:20]}.json"
    found = cached(name, lambda: json.dumps(vars(_content(path, scanned))).encode(), TRUSTED_SECONDS)
    return Content(**json.loads(found))


def _content(path: Path, scanned: np.dtype[Any] | None) -> Content:
    digest, largest = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while block := stream.read(CHUNK_BYTES):
            digest.update(block)
            if scanned is not None:
                largest = max(largest, int(np.frombuffer(block, scanned).max()))
    return Content(digest.hexdigest(), None if scanned is None else largest)


class StoredArrays:
    """The shards of one split, end to end; nothing is read before it is asked for.

    Maps are opened by the process that reads, and left behind when this is sent to another.

    Args:
        paths: the shards, in order; none is empty.
        items: how many items each has.
        arrays: the arrays of each shard, in the order in which it holds them.
    """

    def __init__(self, paths: Sequence[Path], items: Sequence[int], arrays: Mapping[str, Array]) -> None:
        self.paths, self.arrays = list(paths), dict(arrays)
        self.ends = list(accumulate(items))
        self._maps: dict[int, dict[str, Values]] = {}

    @classmethod
    def opened(cls, manifest: Manifest, path: Path, split: str, stamps: Path | None = None) -> "StoredArrays":
        """Return what a split of a manifest in the file ``path`` holds, checked; ``stamps`` as in ``Manifest.check``.

        Raises:
            UsageError: a file is missing or not what it must be, or the split has no items.
        """
        shards = [shard for shard in manifest.of(split) if manifest.items(shard)]
        if not shards:
            raise UsageError(f"{path}: split {split!r} has no {manifest.kind}")
        for shard in shards:
            manifest.check(path.parent, shard, stamps)
        paths = [path.parent / shard.file for shard in shards]
        return StoredArrays(paths, [manifest.items(shard) for shard in shards], manifest.arrays)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_maps": {}}

    def item(self, name: str, index: int) -> Values:
        """Return one item of an array.

        Raises:
            IndexError: there is no such item.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"item {index}: there are {len(self)}")
        shard = self.shard_at(index)
        found: Values = self.map(shard)[name][index - self.ends[shard]]  # counted from the end of the shard
        return found

    def shard_at(self, index: int) -> int:
        """Return the number of the shard that holds an item."""
        return bisect_right(self.ends, index)

    def map(self, shard: int) -> dict[str, Values]:
        """Return the arrays of a shard, each (items, *shape)."""
        if shard not in self._maps:
            if len(self._maps) >= MOST_MAPS:
                del self._maps[next(iter(self._maps))]
            content = np.memmap(self.paths[shard], np.uint8, "r")
            items = self.ends[shard] - (self.ends[shard - 1] if shard else 0)
            self._maps[shard], first = {}, 0
            for name, array in self.arrays.items():
                last = first + items * array.item_bytes
                self._maps[shard][name] = content[first:last].view(array.dtype).reshape(items, *array.shape)
                first = last
        return self._maps[shard]


class PreparedManifest:
    """Finds the manifest that a config names.

    Args:
        files: ``{manifest: PATH}``, relative to the folder of data, $PAPER_REPRO_DATA or the repository's data/.
        prepare: the command that makes it, named where it is absent or wrong.

    Raises:
        ValueError: other files.
    """

    def __init__(self, files: Mapping[str, str], prepare: str) -> None:
        if set(files) != {"manifest"}:
            raise ValueError(f"files must name manifest, got {', '.join(files) or 'none'}")
        self.name, self.prepare = files["manifest"], prepare

    def path(self, data_root: str | Path | None) -> Path:
        """Return where it is.

        Raises:
            UsageError: nowhere.
        """
        found = find_data(self.name, data_root)
        if found is None or not found.is_file():
            raise UsageError(absent(self.name, data_root, self.prepare))
        return found

    def opened(self, data_root: str | Path | None, open_data: Callable[[Path], T]) -> T:
        """Open what it describes.

        Raises:
            UsageError: it is absent, or what it describes is not what it must be.
        """
        path = self.path(data_root)
        try:
            return open_data(path)
        except UsageError as error:
            raise UsageError(f"{error}; run: {self.prepare}") from error

    def hashes(self, data_root: str | Path | None) -> dict[str, str]:
        """Return its SHA-256; it holds those of the files."""
        return {"manifest": data_hash(self.path(data_root))}
