"""Token ids in memory-mapped uint16 files, with a manifest that says what they must be.

A folder holds ``manifest.json``, ``tokenizer.json`` and the shards of each split, in order; put end to end they are one
stream, in which every document is followed by the end of text.  Where one shard ends and the next begins changes no
window.  nanoGPT's ``train.bin`` and ``val.bin`` are such streams without a manifest.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paper_repro.base.errors import UsageError
from paper_repro.base.files import cached

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
DTYPE = np.dtype("<u2")
MOST_IDS = 2**16
FORMAT = 1
CHUNK = 2**22
"""Ids that are hashed at a time."""


@dataclass(frozen=True)
class Shard:
    """One file, as the manifest has it."""

    file: str
    split: str
    documents: int
    tokens: int
    bytes: int
    """UTF-8 bytes of its documents."""
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards holds."""

    settings: Mapping[str, Any]
    """All that the content depends on: source, split rule, tokenizer and its fingerprint, shard size, dtype."""
    shards: tuple[Shard, ...]

    @property
    def vocabulary_size(self) -> int:
        return int(self.settings["tokenizer"]["vocabulary_size"])

    @property
    def fingerprint(self) -> str:
        return str(self.settings["tokenizer"]["fingerprint"])

    @property
    def end_of_text(self) -> int:
        """The id that follows each document."""
        return int(self.settings["tokenizer"]["end_of_text"])

    def of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def totals(self) -> dict[str, dict[str, int]]:
        """Return documents, tokens and bytes of each split."""
        return {
            split: {
                name: sum(getattr(shard, name) for shard in self.of(split)) for name in ("documents", "tokens", "bytes")
            }
            for split in dict.fromkeys(shard.split for shard in self.shards)
        }

    def to_bytes(self) -> bytes:
        content = {
            "format": FORMAT,
            **self.settings,
            "totals": self.totals(),
            "shards": [vars(shard) for shard in self.shards],
        }
        return json.dumps(content, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Return the manifest in a file.

        Raises:
            UsageError: it is no manifest, or one of another format.
        """
        try:
            content = json.loads(path.read_bytes())
            version = content.pop("format")
            content.pop("totals")
            manifest = cls(settings=content, shards=tuple(Shard(**shard) for shard in content.pop("shards")))
            tokens = (
                manifest.vocabulary_size,
                manifest.fingerprint,
                manifest.end_of_text,
                [len(Path(shard.file).parts) for shard in manifest.shards],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}: not a manifest of token shards ({error!r}): prepare the data again") from error
        if version != FORMAT or set(tokens[3]) - {1}:
            raise UsageError(f"{path}: manifest of format {version!r}, expected {FORMAT}: prepare the data again")
        return manifest


@dataclass(frozen=True)
class Content:
    """What a shard was found to hold."""

    sha256: str
    largest: int


def check_shard(
    path: Path, tokens: int | None, sha256: str | None, vocabulary_size: int, stamps: Path | None
) -> Content:
    """Compare a file of ids with what it must be; without ``tokens`` and ``sha256`` its ids are compared alone.

    Its size is looked at always, its content once: the finding is kept in this process, and in the folder ``stamps``
    under the file's path, size and time of change.

    Raises:
        UsageError: it is missing, truncated or altered, or holds an id that the vocabulary lacks.
    """
    if not path.is_file():
        raise UsageError(f"{path}: this shard is missing")
    status = path.stat()
    expected = status.st_size - status.st_size % 2 if tokens is None else tokens * DTYPE.itemsize
    if status.st_size != expected or not status.st_size:
        wanted = f"{expected:,}" if tokens is not None else "an even number above 0"
        raise UsageError(
            f"{path}: this shard has {status.st_size:,} bytes, expected {wanted}: it is truncated or altered"
        )
    found = _content_once(path, stamp_of(path), stamps)
    if sha256 is not None and found.sha256 != sha256:
        raise UsageError(
            f"{path}: this shard is altered: its SHA-256 is {found.sha256[:12]}..., the manifest says {sha256[:12]}..."
        )
    if found.largest >= vocabulary_size:
        raise UsageError(
            f"{path}: holds token id {found.largest}, expected ids below {vocabulary_size}, the vocabulary"
        )
    return found


def stamp_of(path: Path) -> str:
    """Return the SHA-256 of a file's path, size and time of change, under which what was found in it is kept."""
    status = path.stat()
    return hashlib.sha256(f"{path.resolve()}/{status.st_size}/{status.st_mtime_ns}".encode()).hexdigest()


@lru_cache(maxsize=4096)
def _content_once(path: Path, stamp: str, stamps: Path | None) -> Content:
    if stamps is None:
        return _content(path)
    return Content(**json.loads(cached(stamps / f"shard-{stamp[:20]}.json", lambda: _as_json(_content(path)))))


def _as_json(content: Content) -> bytes:
    return json.dumps(vars(content)).encode()


def _content(path: Path) -> Content:
    digest, largest = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while block := stream.read(CHUNK * DTYPE.itemsize):
            digest.update(block)
            largest = max(largest, int(np.frombuffer(block, DTYPE).max()))
    return Content(digest.hexdigest(), largest)


class TokenStream:
    """The shards of one split, end to end; nothing is read before it is asked for.

    Maps are opened by the process that reads, and left behind when the stream is sent to another.

    Args:
        paths: the shards, in order.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self.ends = list(accumulate(path.stat().st_size // DTYPE.itemsize for path in paths))
        self._maps: dict[int, npt.NDArray[np.uint16]] = {}

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_maps": {}}

    def window(self, start: int, length: int) -> npt.NDArray[np.uint16]:
        """Return the ids from ``start`` on, (length,), across the ends of shards."""
        pieces = []
        while length:
            index = bisect_right(self.ends, start)
            ids = self._map(index)
            offset = start - self.ends[index] + len(ids)
            pieces.append(ids[offset : offset + length])
            start, length = start + len(pieces[-1]), length - len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def path_at(self, place: int) -> Path:
        """Return the shard that holds a place of the stream."""
        return self.paths[bisect_right(self.ends, place)]

    def _map(self, index: int) -> npt.NDArray[np.uint16]:
        if index not in self._maps:
            self._maps[index] = np.memmap(self.paths[index], dtype=DTYPE, mode="r")
        return self._maps[index]
