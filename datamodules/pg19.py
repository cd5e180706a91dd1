"""PG19's test books (arXiv 1911.05507), 100 long texts, as text files and as prepared token shards."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.base.files import write_atomically
from paper_repro.datamodules.text import TokenData, read_text

BOOKS = 100
TEST = "test"
LISTING = (
    "https://storage.googleapis.com/storage/v1/b/deepmind-gutenberg/o?prefix=test/&fields=items(name),nextPageToken"
)
FILES = "https://storage.googleapis.com/deepmind-gutenberg/"


def load(path: Path, most: int | None = None) -> tuple[list[str], dict[str, Any]]:
    """Return the first ``most`` books (None: all) of a folder of .txt files, in the order of their names; and what they
    are.

    Raises:
        UsageError: the folder holds none, or one is empty or not UTF-8.
    """
    files = sorted(path.glob("*.txt"))[:most]
    if not files:
        raise UsageError(f"{path}: expected PG19's books, a folder of .txt files, one for each book; found none")
    books = [read_text(file) for file in files]
    digest = hashlib.sha256("\0".join(books).encode()).hexdigest()
    return books, {"name": "pg19", "split": TEST, "documents": len(books), "sha256": digest}


def download(folder: Path, fetch: Callable[[str], bytes]) -> None:
    """Put the test split's books into ``folder``; those that lie there already are kept.

    Args:
        fetch: gives the content under a URL.

    Raises:
        UsageError: the listing is no listing, or of another number of books.
    """
    content = fetch(LISTING)
    try:
        listing = json.loads(content)
        names = [item["name"] for item in listing["items"] if item["name"].endswith(".txt")]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{LISTING}: no listing of books ({error!r}): get them elsewhere, say --from DIR") from error
    if len(names) != BOOKS or "nextPageToken" in listing:
        raise UsageError(f"{LISTING}: {len(names)} books, expected {BOOKS}: get them elsewhere and say --from DIR")
    for name in names:
        path = folder / Path(name).name
        if not path.is_file():
            write_atomically(path, fetch(FILES + name))


class BookData(TokenData):
    """The test books' token shards: a ``TokenData`` of one split, ``test``."""

    @property
    def splits(self) -> tuple[str, ...]:
        return (TEST,)
