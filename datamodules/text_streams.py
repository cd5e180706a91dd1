"""Texts of a large corpus as streams, from the hub or from a folder in its place.

A stream is read on by reading it again and skipping: a position within a compressed file spares no download.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from paper_repro.base.errors import UsageError

STAND_IN = "python scripts/prepare_data.py docstrings"


class Rows(Protocol):
    """Rows in a fixed order, as a streaming data set of the library has them."""

    def skip(self, n: int, /) -> Iterable[dict[str, Any]]:
        """Return the rows from number ``n`` on."""


def from_hub(hub: str, /, **options: str) -> Any:
    """Return the rows of each split of a data set of the hub.

    Raises:
        UsageError: the hub does not give it.
    """
    from datasets import load_dataset

    try:
        return load_dataset(hub, streaming=True, **options)
    except Exception as error:  # whatever the network or the hub's client raises
        raise UsageError(
            f"{hub}: the hub did not give it ({error}): get some of its files otherwise and say --from FOLDER; a "
            f"stand-in that needs no network: {STAND_IN}"
        ) from error


def from_folder(path: Path) -> Any:
    """Return the rows of each split of a folder of parquet or jsonl files.

    Raises:
        UsageError: there is no such folder, or it cannot be read.
    """
    from datasets import load_dataset

    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder; --from takes one of parquet or jsonl files")
    try:
        return load_dataset(str(path), streaming=True)
    except Exception as error:  # the library's own and pyarrow's errors
        raise UsageError(f"{path}: cannot be read: {error}; --from takes a folder of parquet or jsonl files") from error


def names_and_sizes(path: Path) -> str:
    """Return SHA-256 of the names and sizes of a folder's files, in place of a revision.

    Hidden files do not count: downloads keep times there, and none is read.
    """
    files = sorted(file for file in path.rglob("*") if file.is_file())
    names = [file.relative_to(path) for file in files]
    listing = "\n".join(
        f"{name.as_posix()} {file.stat().st_size}"
        for file, name in zip(files, names, strict=True)
        if not any(part.startswith(".") for part in name.parts)
    )
    return hashlib.sha256(listing.encode()).hexdigest()


def reader(
    rows: Rows, where: str, column: str, offset: int = 0, chosen: Callable[[int, str], bool] | None = None
) -> Callable[[int], Iterator[str]]:
    """Return what gives the texts of a split from one of them on.

    Args:
        rows: all rows of the source.
        where: what the source is called where it breaks off.
        column: the one that holds a text.
        offset: rows of the source that come before the split.
        chosen: whether a row belongs to the split, by its place and its text; None: each does.
    """

    def read(first: int) -> Iterator[str]:
        # Where rows are chosen, only reading them all tells how many of them were.
        place, skipped = (offset + first, first) if chosen is None else (offset, 0)
        try:
            for row in rows.skip(place):
                text = row.get(column)
                if not isinstance(text, str):
                    raise TypeError(f"columns {', '.join(row)}, expected a text in one called {column!r}")
                if chosen is None or chosen(place, text):
                    if skipped == first:
                        yield text
                    else:
                        skipped += 1
                place += 1
        except Exception as error:  # the network, the library, pyarrow, a damaged file
            raise UsageError(
                f"{where}: broke off at document {place:,}: {error}; what is finished stays: give the same command "
                "again"
            ) from error

    return read
