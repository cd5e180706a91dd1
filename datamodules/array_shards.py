"""Arrays in memory-mapped files, the format of all prepared data: read, checked and written.

A folder holds ``manifest.json`` and the files (shards) of each split, in order.  A shard holds one or more arrays with
equally many items: all items of the first array, then all items of the second.  So an image and its label are always in
the same file.  Shards are written whole or not at all, so a preparation that was killed goes on where it was.
"""

import contextlib
import hashlib
import io
import json
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from paper_repro.base.configs import leaves
from paper_repro.base.errors import UsageError
from paper_repro.base.files import PART_SUFFIX, absent, cached, find_data, locked, sha256_of_file, write_atomically
from paper_repro.base.identity import stamp

MANIFEST, PROGRESS, LOCK = "manifest.json", "progress.json", ".lock"
FORMAT = 1
TRUSTED_SECONDS = 24 * 3600.0
"""How long a file that was read whole is trusted by its size and time of change; then it is read again."""
MOST_MAPS = 512
"""Files that one process keeps open; the system usually allows 1,024."""
NUMBERS = "biuf"
"""NumPy's letters for booleans, whole numbers and floats."""

Values = npt.NDArray[Any]
Array = np.dtype[Any]
"""Type and shape of one item of an array."""


@dataclass(frozen=True)
class Shard:
    """One file, as the manifest describes it."""

    file: str
    split: str
    counts: Mapping[str, int]
    """Numbers of what it holds, by name; the name of the manifest's first array gives the number of items."""
    sha256: str

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        rest = dict(entry)
        shard = cls(rest.pop("file"), rest.pop("split"), rest, rest.pop("sha256"))
        if len(Path(shard.file).parts) != 1:
            raise ValueError(f"a shard called {shard.file!r}")
        if not all(type(count) is int and count >= 0 for count in shard.counts.values()):
            raise ValueError(f"a shard of {dict(shard.counts)}")
        return shard


@dataclass(frozen=True)
class Manifest:
    """Content of a folder of shards."""

    settings: Mapping[str, Any]
    """All that the content depends on: source, sizes, and ``arrays``, the type and shape of each array."""
    shards: tuple[Shard, ...]

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays of each shard by name, in the order in which a file holds them."""
        found = self.settings["arrays"].items()
        return {name: np.dtype((one["dtype"], tuple(one["shape"]))) for name, one in found}

    def of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def items(self, shard: Shard) -> int:
        """Return the number of items of each array of a shard."""
        return shard.counts[next(iter(self.arrays))]

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the sum of each count over each split."""
        found: dict[str, Counter[str]] = {}
        for shard in self.shards:
            found.setdefault(shard.split, Counter()).update(shard.counts)
        return {split: dict(total) for split, total in found.items()}

    def summary(self) -> list[str]:
        """Return a line on each split."""
        return [
            f"{split}: {', '.join(f'{count:,} {name}' for name, count in total.items())}"
            for split, total in self.totals().items()
        ]

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON; for the same content the bytes must stay the same for ever.

        The SHA-256 of a manifest is part of the id of each cell that was trained on the data.
        """
        shards = [{"file": one.file, "split": one.split, **one.counts, "sha256": one.sha256} for one in self.shards]
        content = {"format": FORMAT, **self.settings, "totals": self.totals(), "shards": shards}
        return json.dumps(content, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the manifest in a file; UsageError: it is no manifest of this kind, or one of another format."""
        try:
            content = json.loads(path.read_bytes())
            if (version := content.pop("format")) != FORMAT:
                raise ValueError(f"its format is {version!r}, expected {FORMAT}")
            totals = content.pop("totals")
            manifest = cls(content, tuple(Shard.from_json(entry) for entry in content.pop("shards")))
            if totals != manifest.totals():
                raise ValueError(f"its totals are {totals}, those of its shards {manifest.totals()}")
            manifest.check_settings()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}: not a manifest of shards ({error!r}): prepare the data again") from error
        return manifest

    def check_settings(self) -> None:
        """Read all settings and counts that are used later; raise any error if something is wrong."""
        if not self.arrays:
            raise ValueError("no arrays")
        for array in self.arrays.values():
            if array.base.kind not in NUMBERS or not array.itemsize:
                raise ValueError(f"an array of {array}")
        for shard in self.shards:
            self.items(shard)

    def check(self, folder: Path, shard: Shard, stamps: Path | None = None) -> None:
        """Compare a file with what the manifest says: its size always, its content once (see ``hash_once``).

        Raises:
            UsageError: the file is missing, truncated or altered.
        """
        path, items = folder / shard.file, self.items(shard)
        if not path.is_file():
            raise UsageError(f"{path}: this shard is missing")
        size, expected = path.stat().st_size, items * sum(array.itemsize for array in self.arrays.values())
        if size != expected:
            raise UsageError(
                f"{path}: this shard has {size:,} bytes, expected {expected:,} for {items:,} items: it is truncated or "
                "altered"
            )
        if (found := hash_once(path, stamp_of(path), stamps)) != shard.sha256:
            raise UsageError(
                f"{path}: this shard is altered: its SHA-256 is {found[:12]}..., "
                f"the manifest says {shard.sha256[:12]}..."
            )

    def verify(self, folder: Path) -> None:
        """Read every shard again; UsageError if one is missing, truncated or altered."""
        for shard in self.shards:
            self.check(folder, shard)


def stamp_of(path: Path) -> str:
    """Return the SHA-256 of a file's path, size and time of change, under which results about it are kept."""
    status = path.stat()
    return hashlib.sha256(f"{path.resolve()}/{status.st_size}/{status.st_mtime_ns}".encode()).hexdigest()


@lru_cache(maxsize=4096)
def hash_once(path: Path, stamped: str, stamps: Path | None) -> str:
    """Return a file's SHA-256, kept under its stamp in this process, and for a day in the folder ``stamps``."""
    if stamps is None:
        return sha256_of_file(path)
    return cached(stamps / stamped[:20], lambda: sha256_of_file(path).encode(), TRUSTED_SECONDS).decode()


# Reading.


class StoredArrays:
    """The shards of one split, end to end, checked, and memory-mapped on first use in each process.

    Args:
        manifest: of the shards.
        path: of the manifest; the shards lie beside it.
        split: of the shards.
        stamps: see ``hash_once``.

    Raises:
        UsageError: a file is missing or altered, or the split has no items.
    """

    def __init__(self, manifest: Manifest, path: Path, split: str, stamps: Path | None = None) -> None:
        shards = [shard for shard in manifest.of(split) if manifest.items(shard)]
        if not shards:
            raise UsageError(f"{path}: split {split!r} has no items")
        for shard in shards:
            manifest.check(path.parent, shard, stamps)
        self.paths, self.arrays = [path.parent / shard.file for shard in shards], manifest.arrays
        self.ends = list(accumulate(map(manifest.items, shards)))
        self._maps: dict[int, dict[str, Values]] = {}

    def __len__(self) -> int:
        return self.ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_maps": {}}  # a pickled map would be a copy of its file

    def item(self, name: str, index: int) -> Values:
        """Return one item of an array; IndexError if there is no such item."""
        if not 0 <= index < len(self):
            raise IndexError(f"item {index}: there are {len(self)}")
        shard = self.shard_at(index)
        found: Values = self.map(shard)[name][index - self.ends[shard]]  # counted from the end of the shard
        return found

    def whole(self, name: str) -> Values:
        """Return all items of an array, in memory."""
        return np.concatenate([self.map(shard)[name] for shard in range(len(self.paths))])

    def shard_at(self, index: int) -> int:
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
                self._maps[shard][name] = np.frombuffer(content, array, items, first)
                first += items * array.itemsize
        return self._maps[shard]


class DataFiles:
    """Finds the files that a config names by their roles.

    Args:
        files: role to path, relative to a folder of data, $PAPER_REPRO_DATA or the repository's data/.
        prepare: the command that makes them, named where one is absent or wrong.
        roles: the roles that ``files`` must have; ValueError for any other.
    """

    def __init__(self, files: Mapping[str, str], prepare: str, *roles: str) -> None:
        self.names, self.prepare = dict(files), prepare
        if self.names.keys() != set(roles):
            raise ValueError(f"files must name {', '.join(roles)}, got {', '.join(files) or 'none'}")

    def path(self, role: str, data_root: str | Path | None) -> Path:
        found = find_data(self.names[role], data_root)
        if found is None or not found.is_file():
            raise UsageError(absent(self.names[role], data_root, self.prepare))
        return found

    @contextlib.contextmanager
    def mended(self) -> Iterator[None]:
        """Add the command that makes the files to the message of a UsageError."""
        try:
            yield
        except UsageError as error:
            advice = f"run: {self.prepare}" if self.prepare else "get or prepare the data again"
            raise UsageError(f"{error}; {advice}") from error

    def hashes(self, data_root: str | Path | None) -> dict[str, str]:
        """Return the SHA-256 of each file by its role; that of a manifest stands for its shards'."""
        return {role: sha256_of_file(self.path(role, data_root)) for role in sorted(self.names)}


class DataSource(ABC):
    """Items in splits, of which a data module makes batches."""

    splits: tuple[str, ...] = ("train", "test")
    data_root: str | Path | None = None
    cache: Path | None = None

    @property
    @abstractmethod
    def counts(self) -> Mapping[str, int]:
        """Items of each split, opened and checked on first use; UsageError if they are absent or damaged."""

    def find(self, data_root: str | Path | None, cache: str | Path | None) -> None:
        """Set the first folder in which files are looked for, and the folder that remembers which were checked."""
        self.data_root, self.cache = data_root, None if cache is None else Path(cache)

    @abstractmethod
    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of what the splits hold."""


class PreparedSource(DataSource):
    """Items that ``scripts/prepare_data.py`` wrote; a subclass is a dataclass.

    ``files`` is ``{manifest: PATH}``, ``prepare`` the command that makes it, named where it is absent or wrong.
    """

    files: Mapping[str, str]
    prepare: str

    def __post_init__(self) -> None:
        self.found = DataFiles(self.files, self.prepare, "manifest")

    @abstractmethod
    def check(self, manifest: Manifest) -> None:
        """Raise UsageError if other items were prepared than are asked for."""

    @cached_property
    def stored(self) -> Mapping[str, StoredArrays]:
        """The items of each split, checked; UsageError if they are absent, altered or others."""
        path = self.found.path("manifest", self.data_root)
        with self.found.mended():
            manifest = Manifest.read(path)
            self.check(manifest)
            stamps = self.cache and self.cache / "shards"
            return {split: StoredArrays(manifest, path, split, stamps) for split in self.splits}

    @property
    def counts(self) -> Mapping[str, int]:
        return {split: len(items) for split, items in self.stored.items()}

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the manifest, which holds those of the files."""
        _ = self.counts
        return self.found.hashes(self.data_root)


def hashes_of(splits: Mapping[str, Iterable[Values]]) -> dict[str, str]:
    """Return SHA-256 of the arrays of each split, end to end."""
    return {
        split: hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest() for split, parts in splits.items()
    }


def kept(
    cache: str | Path | None, name: str, code: str, key: object, build: Callable[[], Mapping[str, Values]]
) -> Mapping[str, Values]:
    """Return the arrays that ``build`` makes, kept in a file below the folder ``cache`` that begins with ``name``.

    They are built again if the file is damaged, the module ``code`` has changed, or ``key``, all else that they depend
    on, is another.
    """
    if cache is None:
        return build()

    def packed() -> bytes:
        stream = io.BytesIO()
        np.savez(stream, **build())  # type: ignore[arg-type]
        return stream.getvalue()

    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:20]
    content = cached(Path(cache) / f"{name}-{digest}-{stamp(code)}.npz", packed)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return dict(archive)


# Writing.


def described(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return the setting ``arrays`` of a manifest."""
    return {name: {"dtype": array.base.str, "shape": list(array.shape)} for name, array in arrays.items()}


class ShardFolder:
    """A folder that is being written: settings compared, shards checked and noted in ``progress.json``.

    Args:
        folder: that of the shards.
        settings: all that the content depends on.
        unit: the count of a shard that says how many items of the source it holds.
        kind: of the manifest.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], unit: str, kind: type[Manifest] = Manifest) -> None:
        self.folder, self.settings, self.unit, self.kind = folder, settings, unit, kind
        self.known: dict[str, Shard] = {}
        """The shards that are finished, by file."""

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder's lock, and read what an earlier call finished; UsageError: it had other settings, or a file
        cannot be written, now or while the lock is held.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / LOCK):
                path = next((path for name in (PROGRESS, MANIFEST) if (path := self.folder / name).is_file()), None)
                if path is not None:
                    earlier = self.kind.read(path)
                    self._compare(earlier.settings)
                    self.known = {shard.file: shard for shard in earlier.shards}
                yield
        except OSError as error:
            raise UsageError(
                f"{error.filename or self.folder}: could not be written ({error.strerror}); what is finished stays: "
                "make room, or mend the folder, and give the same command again"
            ) from error

    def _compare(self, earlier: Mapping[str, Any]) -> None:
        both = (earlier, self.settings)
        found, wanted = ({key: json.dumps(value) for key, value in leaves(settings)} for settings in both)
        for key in [*wanted, *found]:
            if found.get(key) != wanted.get(key):
                raise UsageError(
                    f"{self.folder} was prepared with {key} {found.get(key)}, asked for is {wanted.get(key)}: "
                    "remove the folder, or prepare into another with --folder"
                )

    def is_whole(self, shard: Shard) -> bool:
        """Return whether the file is what was noted, and say where it is not."""
        try:
            self.kind(self.settings, ()).check(self.folder, shard)
        except UsageError as error:
            print(f"{error}; it is made again")
            return False
        return True

    def complete(
        self, split: str, count: float, make: Callable[[str, int, Sequence[Shard]], Shard | None]
    ) -> list[Shard]:
        """Return the shards of a split in order, finished ones that are whole and others that ``make`` writes.

        Args:
            split: of the shards.
            count: how many items of the source it has; infinite: ``make`` says where it ends.
            make: from a file's name, its first item in the source and the shards before it to the shard that was
                written; None where nothing is left.
        """
        shards: list[Shard] = []
        while (first := sum(shard.counts[self.unit] for shard in shards)) < count:
            name = f"{split}-{len(shards):05d}.bin"
            shard = self.known.get(name)
            if shard is None or not self.is_whole(shard):
                shard = make(name, first, shards)
                if shard is None:
                    break
                self.known[name] = shard
                self.note(PROGRESS, self.known.values())
            shards.append(shard)
        return shards

    def finish(self, shards: Iterable[Shard]) -> Manifest:
        """Write the manifest in place of the notes on progress."""
        manifest = self.note(MANIFEST, shards)
        (self.folder / PROGRESS).unlink(missing_ok=True)
        return manifest

    def note(self, name: str, shards: Iterable[Shard]) -> Manifest:
        """Write the settings and what is finished into the file ``name``."""
        manifest = self.kind(self.settings, tuple(shards))
        self.put(name, manifest.to_bytes())
        return manifest

    def put(self, name: str, content: bytes) -> None:
        """Write a file whole, and remove what a call that was killed left of it."""
        for part in self.folder.glob(f".{name}.*{PART_SUFFIX}"):
            part.unlink()
        write_atomically(self.folder / name, content)
