"""RedPajama-V2 and FineWeb as streams of documents, from the network or from a folder in their place (EBT, appendix C).

The authors split a whole download at random; here a document's place in the stream decides, so that the split does not
depend on how much is read.  A stream is read on by reading it again and skipping, because a position within a
compressed file spares no download.
"""

import contextlib
import gzip
import hashlib
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from paper_repro.base.errors import UsageError, one_of
from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import permutation
from paper_repro.datamodules.shard_writing import Part
from paper_repro.datamodules.text import TRAIN, VAL

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


VAL_SHARE, SPLIT_SEED = 0.0005, 33
"""The authors'."""
VAL_DOCUMENTS = 2048
"""The authors have about 33,000, which are 0.05 % of RedPajama's sample; these lie among its first 4.1 million."""
SECONDS_OF_SILENCE = 60
REDPAJAMA, FINEWEB = "redpajama", "fineweb"

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
"""The weeks of each year whose crawl RedPajama-V2 holds."""


@dataclass(frozen=True)
class Corpus:
    """A corpus that is read as one stream of documents."""

    hub: str
    sample: str
    column: str
    open: Callable[[], Rows]


class RedPajamaFiles:
    """The documents of RedPajama-V2's files, one gzipped JSON object a line.

    The repository on the hub holds a script, which today's ``datasets`` does not run; the files lie at their publisher,
    where the script looks for them.  As by the script, files that are missing there or are not gzip are passed over,
    and so are lines that are not JSON.

    Args:
        urls: of the files, in order.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = urls

    def skip(self, n: int, /) -> Iterator[dict[str, Any]]:
        """Return the documents from number ``n`` on."""
        return itertools.islice(self._documents(), n, None)

    def _documents(self) -> Iterator[dict[str, Any]]:
        for url in self.urls:
            for line in _lines(url):
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
    """Return the names of the files of RedPajama-V2's sample of 100 billion tokens, in a random order.

    The order is fixed.  It mixes languages and years from the first document on, as the authors' shuffled reading does.
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


def _redpajama() -> Rows:
    return RedPajamaFiles([REDPAJAMA_URL.format(name) for name in sample_names()])


def _fineweb() -> Rows:
    rows: Rows = from_hub(CORPORA[FINEWEB].hub, name=CORPORA[FINEWEB].sample)[TRAIN]
    return rows


CORPORA: Mapping[str, Corpus] = {
    REDPAJAMA: Corpus("togethercomputer/RedPajama-Data-V2", "sample-100B", "raw_content", _redpajama),
    FINEWEB: Corpus("HuggingFaceFW/fineweb", "sample-100BT", "text", _fineweb),
}


def load(name: str, path: Path | None = None, val_documents: int = VAL_DOCUMENTS) -> tuple[list[Part], dict[str, Any]]:
    """Return the streams of the splits train and val; and what they are.

    A document belongs to val if ``mix(33, "val", its place)`` lies in the lowest 0.05 %; the first ``val_documents`` of
    these are written.  Documents without a text are left out.

    Args:
        name: redpajama or fineweb.
        path: a folder of parquet, jsonl or json.gz files with the corpus' column; None: the network.
        val_documents: documents of val.  To find n of them, 2,000 n documents are read.

    Raises:
        UsageError: the hub does not answer, the folder holds no data, or no split train.
        ValueError: another name.
    """
    corpus = CORPORA[one_of("name", name, CORPORA)]
    rows = corpus.open() if path is None else _training_split(from_folder(path), path)
    where = corpus.hub if path is None else str(path)

    def part(split: str, documents: int | None) -> Part:
        def chosen(place: int, text: str) -> bool:
            return bool(text) and is_val(place) == (split == VAL)

        return Part(split, reader(rows, where, corpus.column, chosen=chosen), documents)

    source = {
        "name": name,
        "from": f"{corpus.hub}, {corpus.sample}" if path is None else "local files",
        "revision": "main" if path is None else names_and_sizes(path),
        "column": corpus.column,
        "split": f"val: mix({SPLIT_SEED}, 'val', place) in the lowest {VAL_SHARE:.2%}",
        "val_documents": val_documents,
    }
    return [part(TRAIN, None), part(VAL, val_documents)], source


def is_val(place: int) -> bool:
    """Return whether the document at a place of the stream is held out."""
    return mix(SPLIT_SEED, "val", place) < VAL_SHARE * 2**63


def _training_split(rows: Any, path: Path) -> Rows:
    if TRAIN not in rows:
        raise UsageError(f"{path}: splits {', '.join(rows)}, expected one called 'train': rename its files")
    found: Rows = rows[TRAIN]
    return found
