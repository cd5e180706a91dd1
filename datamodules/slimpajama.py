"""SlimPajama's documents as streams from the hub, or from a folder in its place (CEM, D.2).

A stream is read on by reading it again and skipping: a training file of the hub holds about 2.5 billion tokens, as many
as the paper's whole budgets, and a position within a file spares no download.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.stream_shards import Part
from paper_repro.datamodules.text import TRAIN, VAL, TokenData

HUB = "gmongaras/SlimPajama-627B_Reupload"
"""The paper, D.2, spells the owner gmgongaras."""
REVISION = "c34c22dbb10ae6b264a2f357a909d1a537141b36"
TEST = "test"
HELD_OUT = {VAL: "validation", TEST: "test"}
"""The source's splits that are not trained on, by our names."""
HELD_OUT_DOCUMENTS = 2**13
COLUMN = "text"
STAND_IN = "python scripts/prepare_data.py docstrings"


class SlimPajamaData(TokenData):
    """SlimPajama's token shards: a ``TokenData`` with a third split, ``test``, that of the paper's perplexities."""

    @property
    def splits(self) -> tuple[str, ...]:
        return (TRAIN, VAL, TEST)


def load(path: Path | None = None) -> tuple[list[Part], dict[str, Any]]:
    """Return the streams of the splits train, val and test of the hub's SlimPajama or of a folder; and what they are.

    The first 8,192 documents of the source's own validation and test splits are val and test.  A source without them
    gives its first 8,192 documents to val, the next 8,192 to test and the rest to training.  Neither depends on how
    much is trained on.

    Args:
        path: a folder of parquet or jsonl files, whose names or folders may begin with train, validation and test;
            None: the hub.

    Raises:
        UsageError: the hub does not answer, the folder holds no data, or there is no split train or no column text.
    """
    rows, revision = (_hub(), REVISION) if path is None else (_local(path), _names_and_sizes(path))
    where = HUB if path is None else str(path)
    if TRAIN not in rows:
        raise UsageError(f"{where}: splits {', '.join(rows)}, expected one called 'train': rename its files")
    size = HELD_OUT_DOCUMENTS
    places = {TRAIN: (TRAIN, 2 * size), VAL: (TRAIN, 0), TEST: (TRAIN, size)}
    if set(HELD_OUT.values()) <= set(rows):
        places = {TRAIN: (TRAIN, 0), **{split: (theirs, 0) for split, theirs in HELD_OUT.items()}}
    parts = [
        Part(split, _reader(rows[theirs], f"{where}, split {theirs}", first), None if split == TRAIN else size)
        for split, (theirs, first) in places.items()
    ]
    source = {
        "name": "slimpajama",
        "from": HUB if path is None else "local files",
        "revision": revision,
        "held_out_documents": size,
        "splits": {split: f"{theirs} from document {first}" for split, (theirs, first) in places.items()},
    }
    return parts, source


def _hub() -> Any:
    from datasets import load_dataset

    try:
        return load_dataset(HUB, revision=REVISION, streaming=True)
    except Exception as error:  # whatever the network or the hub's client raises
        raise UsageError(
            f"{HUB}: the hub did not give it ({error}): get some of its files otherwise and say --from FOLDER; a "
            f"stand-in that needs no network: {STAND_IN}"
        ) from error


def _local(path: Path) -> Any:
    from datasets import load_dataset

    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder; --from takes one of parquet or jsonl files")
    try:
        return load_dataset(str(path), streaming=True)
    except Exception as error:  # the library's own and pyarrow's errors
        raise UsageError(f"{path}: cannot be read: {error}; --from takes a folder of parquet or jsonl files") from error


def _names_and_sizes(path: Path) -> str:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listing = "\n".join(f"{file.relative_to(path).as_posix()} {file.stat().st_size}" for file in files)
    return hashlib.sha256(listing.encode()).hexdigest()


def _reader(rows: Any, where: str, offset: int) -> Callable[[int], Iterator[str]]:
    def read(first: int) -> Iterator[str]:
        place = offset + first
        try:
            for row in rows.skip(place):
                if not isinstance(row.get(COLUMN), str):
                    raise TypeError(f"columns {', '.join(row)}, expected a text in one called {COLUMN!r}")
                yield row[COLUMN]
                place += 1
        except Exception as error:  # the network, the library, pyarrow, a damaged file
            raise UsageError(
                f"{where}: broke off at document {place:,}: {error}; what is finished stays: give the same command "
                "again"
            ) from error

    return read
