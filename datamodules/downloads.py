"""Files from the network and the hub: fetched, and put whole into their places, with errors of one line."""

import contextlib
import http.client
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.base.files import write_atomically

SECONDS_OF_SILENCE = 60


@contextlib.contextmanager
def given(source: str | Path, advice: str) -> Iterator[None]:
    """Turn any error of a library that reads a data set of the hub, a file or a folder into a UsageError."""
    try:
        yield
    except Exception as error:  # the network's, the hub's client's, the library's own and pyarrow's errors
        if isinstance(source, Path):
            raise UsageError(f"{source}: cannot be read: {error}; {advice}") from error
        raise UsageError(f"{source}: the hub did not give it ({error}): {advice}") from error


def load(hub: str, path: Path | None, **options: Any) -> Any:
    """Return the rows of each split of a folder of parquet, jsonl or image files; without one of a data set of the hub,
    with these options.  UsageError: there is nothing of this kind, or the hub does not answer.
    """
    from datasets import load_dataset

    if path is None:
        with given(hub, "get its files otherwise and say --from DIR; if it asks for an account, run: hf auth login"):
            return load_dataset(hub, **options)
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder; --from takes one of parquet, jsonl or image files")
    with given(path, "--from takes a folder of parquet, jsonl or image files"):
        return load_dataset(str(path), streaming=options.get("streaming", False))


def split_of(rows: Any, split: str, where: object) -> Any:
    """Return the rows of a split; UsageError, which names the source: there is none of that name."""
    if split not in rows:
        raise UsageError(f"{where}: splits {', '.join(rows)}, expected one called {split!r}: rename its files")
    return rows[split]


def fetch(url: str, kind: str = "*/*") -> bytes:
    """Return the answer of an address, of a media type; UsageError if there is none, or half of it."""
    try:
        request = urllib.request.Request(url, headers={"Accept": kind})
        with urllib.request.urlopen(request, timeout=SECONDS_OF_SILENCE) as answer:
            content: bytes = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise UsageError(f"{url} did not answer ({error}): get the file elsewhere and give --from PATH") from error
    return content


def put(path: Path, content: bytes) -> None:
    """Write a file whole; UsageError if the operating system refuses."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UsageError(f"{path}: could not be written ({error.strerror}): make room, or give another --to") from error
