"""Where texts that are prepared come from: OpenWebText (NRGPT, F.5), SlimPajama (CEM, D.2), RedPajama-V2 and FineWeb
(EBT, appendix C), and PG19's test books (arXiv 1911.05507); from the network, or from files in its place.

SlimPajama, RedPajama and FineWeb are streams.  An interrupted stream resumes in the file where it stopped.
"""

import contextlib
import gzip
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from math import inf
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import permutation
from paper_repro.datamodules.downloads import SECONDS_OF_SILENCE, load, split_of
from paper_repro.datamodules.text import TEST, TRAIN, VAL
from paper_repro.datamodules.token_shards import Part

VAL_SHARE = 0.0005
"""NanoGPT's of OpenWebText, and the authors' of RedPajama and FineWeb."""
COLUMN = "text"

# OpenWebText, split as nanoGPT splits it.

OPENWEBTEXT = "Skylion007/openwebtext"
OPENWEBTEXT_DOCUMENTS = 8_013_769
"""As many there are; the hub's own conversion to parquet holds a part only."""
OPENWEBTEXT_SEED = 2357


def openwebtext(path: Path | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the documents of a folder of parquet or jsonl files, or of the hub's OpenWebText, by split, 0.05 % of them
    validation; and what they are.

    Raises:
        UsageError: nothing of this kind, no column ``text``, fewer than two documents, or the hub does not answer.
    """
    where = path or OPENWEBTEXT
    rows = _texts(OPENWEBTEXT, path, TRAIN)
    if path is None and len(rows) != OPENWEBTEXT_DOCUMENTS:
        raise UsageError(f"{where}: {len(rows):,} documents, expected {OPENWEBTEXT_DOCUMENTS:,}: say --from DIR")
    if len(rows) < 2:
        raise UsageError(f"{where}: {len(rows)} documents, expected at least 2, one for each split")
    probes = [rows[place][COLUMN] for place in (0, len(rows) // 2, len(rows) - 1)]
    source = {
        "name": "openwebtext",
        "from": OPENWEBTEXT if path is None else "local files",
        "documents": len(rows),
        "sha256_of_first_middle_last": sha256_of_bytes("\0".join(probes).encode()),
        "split": f"train_test_split(test_size={VAL_SHARE}, seed={OPENWEBTEXT_SEED}, shuffle=True)",
    }
    parts = rows.train_test_split(test_size=VAL_SHARE, seed=OPENWEBTEXT_SEED, shuffle=True)
    return {TRAIN: parts["train"][COLUMN], VAL: parts["test"][COLUMN]}, source


def _texts(hub: str, path: Path | None, split: str) -> Any:
    """Return the rows of a split, which have a column ``text``."""
    where = path or hub
    rows = split_of(load(hub, path), split, where)
    if COLUMN not in rows.column_names:
        raise UsageError(f"{where}: columns {', '.join(rows.column_names)}, expected one called {COLUMN!r}: rename it")
    return rows


# PG19's test books.

BOOKS = "emozilla/pg19-test"
"""A copy of the test split of PG19, whose own repository on the hub holds a script."""


def books(path: Path | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the books of a folder of parquet or jsonl files, or of the hub's copy, as the split test; and what they
    are.  UsageError: nothing of this kind, no column ``text``, or the hub does not answer.
    """
    texts = _texts(BOOKS, path, TEST)[COLUMN]
    digest = sha256_of_bytes("\0".join(texts).encode())
    return {TEST: texts}, {"name": "pg19", "split": TEST, "documents": len(texts), "sha256": digest}


# Streams.

Streams = tuple[list[Part], dict[str, Any]]
SLIMPAJAMA, SLIMPAJAMA_REVISION = "gmongaras/SlimPajama-627B_Reupload", "c34c22dbb10ae6b264a2f357a909d1a537141b36"
"""The paper, D.2, spells the owner gmgongaras.  One file holds 2.5 billion tokens, the paper's whole budget."""
HELD_OUT = {VAL: "validation", TEST: "test"}
HELD_OUT_DOCUMENTS = 2**13
SPLIT_SEED = 33
"""The authors' of RedPajama and FineWeb."""
VAL_DOCUMENTS = 2048
"""The authors have about 33,000, which are 0.05 % of RedPajama's sample; these lie among its first 4.1 million."""
REDPAJAMA, FINEWEB = "redpajama", "fineweb"
CORPORA = {
    REDPAJAMA: ("togethercomputer/RedPajama-Data-V2", "sample-100B", "raw_content"),
    FINEWEB: ("HuggingFaceFW/fineweb", "sample-100BT", "text"),
}
"""The name of each corpus on the hub, its sample, and the column of its texts."""
REDPAJAMA_URL = "https://data.together.xyz/redpajama-data-v2/v1.0.0/documents/{}.json.gz"
LANGUAGES = ("en", "de", "fr", "es", "it")
PARTITIONS = ("head", "middle")
SAMPLE_FILES = 10
"""The sample of 100 billion tokens has the first ten of each snapshot, language and partition."""
SNAPSHOTS: Mapping[int, str] = {
    2014: "15 23 35 41 42 49 52",
    2015: "14 22 27 32 35 40 48",
    2016: "07 18 22 26 30 36 40 44 50",
    2017: "04 09 17 22 26 30 34 39 43 47 51",
    2018: "05 09 13 17 22 26 30 34 39 43 47 51",
    2019: "04 09 13 18 22 26 30 35 39 43 47 51",
    2020: "05 10 16 24 29 34 40 45 50",
    2021: "04 10 17 21 25 31 39 43 49",
    2022: "05 21 27 33 40 49",
    2023: "06 14",
}


def names_and_sizes(path: Path) -> str:
    """Return SHA-256 of the names and sizes of a folder's files, in place of a revision; hidden files do not count."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    shown = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    listing = "\n".join(f"{file.relative_to(path).as_posix()} {file.stat().st_size}" for file in shown)
    return sha256_of_bytes(listing.encode())


class Reader:
    """Reads the texts of a split in order, from its first or from a position that an earlier reader saved.

    Args:
        rows: all rows of the source, a streaming data set.
        where: the name of the source in messages.
        column: the one that holds a text.
        offset: rows of the source that come before the split.
        chosen: whether a row belongs to the split, by its place and its text; None: each does.
    """

    def __init__(
        self, rows: Any, where: str, column: str, offset: int = 0, chosen: Callable[[int, str], bool] | None = None
    ) -> None:
        self.source, self.where, self.column, self.offset = rows, where, column, offset
        self.chosen = chosen or (lambda place, text: True)

    def __call__(self, first: int, position: Mapping[str, Any] | None = None) -> Iterator[str]:
        """Yield the texts from number ``first`` on; its saved ``position`` spares the files of the source before it."""
        import datasets

        self.rows, self.place, number = self.source.skip(self.offset), self.offset, 0
        if position is not None and position["datasets"] == datasets.__version__:
            self.rows.load_state_dict(position["rows"])
            self.place, number = position["place"], first
        try:
            for row in self.rows:
                text, place = row.get(self.column), self.place
                if not isinstance(text, str):
                    raise TypeError(f"columns {', '.join(row)}, expected a text in one called {self.column!r}")
                self.place += 1
                if self.chosen(place, text):
                    number += 1
                    if number > first:
                        yield text
        except Exception as error:  # the network, the library, pyarrow, a damaged file
            raise UsageError(
                f"{self.where}: broke off at document {self.place:,}: {error}; what is finished stays: give the same "
                "command again"
            ) from error

    def position(self) -> dict[str, Any]:
        """Return the place behind the last text, for JSON."""
        import datasets

        return {"datasets": datasets.__version__, "place": self.place, "rows": self.rows.state_dict()}

    def part(self, split: str, documents: float = inf) -> Part:
        return Part(split, self, documents, self.position)


def slimpajama(path: Path | None = None) -> Streams:
    """Return the streams of the splits train, val and test of the hub's SlimPajama, or of a folder of parquet or jsonl
    files, whose names or folders may begin with train, validation and test.

    The first 8,192 documents of the source's own validation and test splits are val and test.  A source without them
    gives its first 8,192 documents to val, the next 8,192 to test and the rest to training.

    Raises:
        UsageError: the hub does not answer, the folder holds no data, or there is no split train.
    """
    rows = load(SLIMPAJAMA, path, revision=SLIMPAJAMA_REVISION, streaming=True)
    where = SLIMPAJAMA if path is None else str(path)
    split_of(rows, TRAIN, where)
    size = HELD_OUT_DOCUMENTS
    places = {TRAIN: (TRAIN, 2 * size), VAL: (TRAIN, 0), TEST: (TRAIN, size)}
    if set(HELD_OUT.values()) <= set(rows):
        places = {TRAIN: (TRAIN, 0), **{split: (theirs, 0) for split, theirs in HELD_OUT.items()}}
    parts = [
        Reader(rows[theirs], f"{where}, split {theirs}", COLUMN, first).part(split, inf if split == TRAIN else size)
        for split, (theirs, first) in places.items()
    ]
    source = {
        "name": "slimpajama",
        "from": SLIMPAJAMA if path is None else "local files",
        "revision": names_and_sizes(path) if path else SLIMPAJAMA_REVISION,
        "held_out_documents": size,
        "splits": {split: f"{theirs} from document {first}" for split, (theirs, first) in places.items()},
    }
    return parts, source


def redpajama_documents(urls: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the documents of RedPajama-V2's files at ``urls``, one gzipped JSON object a line.

    The repository on the hub holds a script, which ``datasets`` does not run.  As by the script, files that are missing
    at their publisher or are not gzip are passed over, and so are lines that are not JSON.
    """
    for line in itertools.chain.from_iterable(map(_lines, urls)):
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _lines(url: str) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_OF_SILENCE) as answer, gzip.open(answer) as lines:
            yield from lines
    except gzip.BadGzipFile:
        return
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise


def sample_names() -> list[str]:
    """Return the names of the files of RedPajama-V2's sample of 100 billion tokens, in a fixed random order, because
    the authors read them shuffled.
    """
    names = [
        f"{year}-{week}/{number:04d}/{language}_{partition}"
        for language in LANGUAGES
        for year, weeks in SNAPSHOTS.items()
        for week in weeks.split()
        for partition in PARTITIONS
        for number in range(SAMPLE_FILES)
    ]
    order = permutation(len(names), mix(SPLIT_SEED, REDPAJAMA, "files"))
    return [names[place] for place in order.tolist()]


def web_documents(name: str, path: Path | None = None) -> Streams:
    """Return the streams of the splits train and val of RedPajama or FineWeb.

    The authors split a whole download at random.  Here a document's place in the stream decides, so that the split does
    not depend on how much is read: it belongs to val if ``mix(33, "val", its place)`` lies in the lowest 0.05 %; the
    first 2,048 of these are written, for which 4.1 million are read.  Documents without a text are left out.

    Args:
        name: redpajama or fineweb.
        path: a folder of parquet, jsonl or json.gz files with the corpus' column; None: the network.

    Raises:
        UsageError: the hub does not answer, the folder holds no data, or no split train.
    """
    hub, sample, column = CORPORA[name]
    where = hub if path is None else str(path)
    if path is None and name == REDPAJAMA:
        from datasets import IterableDataset

        urls = [REDPAJAMA_URL.format(file) for file in sample_names()]
        rows: Any = IterableDataset.from_generator(redpajama_documents, gen_kwargs={"urls": urls})
    else:
        rows = split_of(load(hub, path, name=sample, streaming=True), TRAIN, where)

    train = Reader(rows, where, column, chosen=lambda place, text: bool(text) and not is_val(place))
    val = Reader(rows, where, column, chosen=lambda place, text: bool(text) and is_val(place))
    source = {
        "name": name,
        "from": f"{hub}, {sample}" if path is None else "local files",
        "revision": "main" if path is None else names_and_sizes(path),
        "column": column,
        "split": f"val: mix({SPLIT_SEED}, 'val', place) in the lowest {VAL_SHARE:.2%}",
        "val_documents": VAL_DOCUMENTS,
    }
    return [train.part(TRAIN), val.part(VAL, VAL_DOCUMENTS)], source


def is_val(place: int) -> bool:
    return mix(SPLIT_SEED, "val", place) < VAL_SHARE * 2**63
