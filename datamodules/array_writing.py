"""Shards written whole or not at all, so that a preparation that was killed goes on where it was."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from paper_repro.base.errors import UsageError
from paper_repro.base.files import PART_SUFFIX, locked, write_atomically
from paper_repro.datamodules.array_shards import MANIFEST, Manifest, Shard

PROGRESS = "progress.json"
LOCK = ".lock"
M = TypeVar("M", bound=Manifest)


@contextlib.contextmanager
def told_of_the_disk(folder: Path) -> Iterator[None]:
    """Turn what the operating system refuses into a UsageError that says how to go on."""
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        raise UsageError(
            f"{place}: could not be written ({error.strerror}); what is finished stays: make room, or mend the "
            "folder, and give the same command again"
        ) from error


@contextlib.contextmanager
def held(folder: Path, lock: str = LOCK) -> Iterator[None]:
    """Make a folder and hold one of its locks.

    Raises:
        UsageError: the folder holds somebody else's shards, or the operating system refuses a file, now or while the
            lock is held.
    """
    with told_of_the_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
        shards = sorted(name for name in names if name.endswith(".bin"))
        if shards and not any(name.startswith((LOCK, MANIFEST, "progress")) for name in names):
            raise UsageError(
                f"{folder}: holds {shards[0]} and neither {MANIFEST} nor {PROGRESS}, so no preparation wrote it and it "
                "is left alone; prepare into another folder with --folder"
            )
        with locked(folder / lock):
            yield


def shard_name(split: str, index: int) -> str:
    """Return the name of a split's file."""
    return f"{split}-{index:05d}.bin"


class ShardFolder(Generic[M]):
    """What every preparation does in its folder: settings compared, shards checked and noted.

    Args:
        folder: that of the shards.
        settings: all that their content depends on.
        kind: the class of the manifest.
        say: is told of shards that are damaged.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], kind: type[M], say: Callable[[str], None] = print
    ) -> None:
        self.folder, self.settings, self.kind, self.say = folder, settings, kind, say

    def compare(self, earlier: Mapping[str, Any]) -> None:
        """Compare the settings of an earlier call.

        Raises:
            UsageError: they are others.
        """
        found, wanted = _flat(earlier), _flat(self.settings)
        for key in [*wanted, *found]:
            if found.get(key) != wanted.get(key):
                raise UsageError(
                    f"{self.folder} was prepared with {key} {found.get(key)}, asked for is {wanted.get(key)}: "
                    "remove the folder, or prepare into another with --folder"
                )

    def is_whole(self, shard: Shard, tell: bool = True) -> bool:
        """Return whether the file is what was noted; with ``tell``, log where it is not."""
        try:
            self.kind(self.settings, ()).check(self.folder, shard)
        except UsageError as error:
            if tell:
                self.say(f"{error}; it is made again")
            return False
        return True

    def known(self) -> dict[str, Shard]:
        """Return the shards that an earlier call finished, by file.

        Raises:
            UsageError: it had other settings.
        """
        path = next((path for name in (PROGRESS, MANIFEST) if (path := self.folder / name).is_file()), None)
        if path is None:
            return {}
        earlier = self.kind.read(path)
        self.compare(earlier.settings)
        return {shard.file: shard for shard in earlier.shards}

    def in_order(
        self,
        counts: Mapping[str, int],
        make: Callable[[str, str, int], Shard | None],
        used: Callable[[Shard | None], int],
    ) -> list[Shard]:
        """Make each split's shards one after the other; those that an earlier call finished are kept.

        A shard is made again if its file is missing or damaged, and if something was left out, which may have been
        mended.

        Args:
            counts: how many items of the source each split has.
            make: from a file's name, its split and its first item in the source to the shard that was written; None
                where it was refused.
            used: how many items of the source a shard takes.
        """
        known = self.known()
        shards = []
        for split, count in counts.items():
            first = index = 0
            while first < count:
                name = shard_name(split, index)
                shard = known.get(name)
                if shard is None or shard.skipped or not self.is_whole(shard):
                    shard = make(name, split, first)
                    if shard is not None:
                        known[name] = shard
                        self.note(PROGRESS, known.values())
                if shard is not None:
                    shards.append(shard)
                first, index = first + used(shard), index + 1
        return shards

    def finish(self, shards: Iterable[Shard]) -> M:
        """Write the manifest, unless one that says the same is there, perhaps as older code spelled it."""
        manifest = self.kind(self.settings, tuple(shards))
        if not self._says(manifest):
            self.put(MANIFEST, manifest.to_bytes())
        (self.folder / PROGRESS).unlink(missing_ok=True)
        return manifest

    def _says(self, manifest: M) -> bool:
        try:
            return self.kind.read(self.folder / MANIFEST) == manifest
        except (FileNotFoundError, UsageError):
            return False

    def note(self, name: str, shards: Iterable[Shard]) -> M:
        """Write the settings and what is finished into the file ``name``."""
        manifest = self.kind(self.settings, tuple(shards))
        self.put(name, manifest.to_bytes())
        return manifest

    def put(self, name: str, content: bytes) -> None:
        """Write a file whole, and remove what a call that was killed left of it."""
        for part in self.folder.glob(f".{name}.*{PART_SUFFIX}"):
            part.unlink()
        write_atomically(self.folder / name, content)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": json.dumps(value)}
    return found
