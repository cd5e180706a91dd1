"""Token ids in shards of uint16, with a tokenizer beside them: read, checked, written.

The shards of a split, put end to end, are one stream, in which every document is followed by the end of text.  Where
one shard ends and the next begins changes no window.

``write_shards`` writes documents that have a length; ``write_streams`` writes streams, equally many documents a shard.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import sha256_of_bytes
from paper_repro.datamodules.array_shards import Manifest, Shard, ShardFolder, StoredArrays
from paper_repro.datamodules.tokenizers import BytePairTokenizer, end_of_text

TOKENIZER, POSITION = "tokenizer.json", "position-{}.json"
DTYPE = np.dtype("<u2")
DOCUMENTS, TOKENS, BYTES = "documents", "tokens", "bytes"
"""The counts of a shard: the bytes are those of its documents in UTF-8."""
ARRAYS = {TOKENS: DTYPE}
SHARD_TOKENS, SHARD_DOCUMENTS = 2**26, 2**16
DOCUMENTS_AT_ONCE = 512


class TokenManifest(Manifest):
    """Content of a folder of token shards; its settings name no ``arrays``, because there is only one."""

    arrays = ARRAYS

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

    def check_settings(self) -> None:
        super().check_settings()
        _ = self.vocabulary_size, self.fingerprint, self.end_of_text
        for shard in self.shards:
            _ = shard.counts[DOCUMENTS], shard.counts[BYTES]

    def verify(self, folder: Path) -> None:
        """Read the tokenizer and every shard again; UsageError if one is missing, altered or another's."""
        self.tokenizer(folder)
        super().verify(folder)

    def tokenizer(self, folder: Path) -> BytePairTokenizer:
        """Return the tokenizer that the shards were made with; UsageError if it is absent or another lies there."""
        path = folder / TOKENIZER
        tokenizer = BytePairTokenizer.load(path)
        if tokenizer.fingerprint != self.fingerprint:
            raise UsageError(f"{path}: another tokenizer than the one that the manifest's shards were made with")
        return tokenizer


class TokenStream(StoredArrays):
    """The shards of one split, end to end."""

    def __getitem__(self, part: slice) -> npt.NDArray[np.uint16]:
        """Return the ids of a part, across the ends of shards."""
        start, stop, _ = part.indices(len(self))
        pieces = [np.zeros(0, DTYPE)]
        while start < stop:
            shard = self.shard_at(start)
            pieces.append(self.map(shard)[TOKENS][start - self.ends[shard] :][: stop - start])
            start += len(pieces[-1])
        return np.concatenate(pieces[1:]) if len(pieces) > 2 else pieces[-1]


# Writing.


@dataclass(frozen=True)
class Part:
    """The documents of one split."""

    split: str
    read: Callable[..., Iterator[str]]
    """From the number of a document to the texts from that one on."""
    documents: float = inf
    """How many are taken; infinite: as many as ``max_tokens`` asks for."""
    position: Callable[[], Mapping[str, Any]] | None = None
    """Returns, for JSON, where the reading is; ``read`` takes that back as its second argument."""


def write_shards(
    folder: Path,
    splits: Mapping[str, Sequence[str]],
    source: Mapping[str, Any],
    tokenizer: BytePairTokenizer,
    shard_tokens: int = SHARD_TOKENS,
) -> Manifest:
    """Encode every document, the end of text after each, into shards of whole documents.

    A shard is closed by the document that brings it to ``shard_tokens``.  ``_write`` explains the rest.
    """

    def part(split: str, documents: Sequence[str]) -> Part:
        def read(first: int) -> Iterator[str]:
            places = range(first, len(documents), DOCUMENTS_AT_ONCE)
            return itertools.chain.from_iterable(documents[at : at + DOCUMENTS_AT_ONCE] for at in places)

        return Part(split, read, len(documents))

    size = {"shard_tokens": at_least("shard_tokens", shard_tokens)}
    return _write(folder, [part(*one) for one in splits.items()], source, tokenizer, size)


def write_streams(
    folder: Path,
    parts: Sequence[Part],
    source: Mapping[str, Any],
    tokenizer: BytePairTokenizer,
    max_tokens: int | None = None,
    shard_documents: int = SHARD_DOCUMENTS,
) -> Manifest:
    """Encode streams, the end of text after each document, into shards of ``shard_documents`` documents.

    A part without a number of documents ends with the document that brings its tokens, ends of text among them, to
    ``max_tokens``.  ``_write`` explains the rest.
    """
    size = {"shard_documents": at_least("shard_documents", shard_documents), "max_tokens": max_tokens}
    return _write(folder, parts, source, tokenizer, size)


def _write(
    folder: Path,
    parts: Sequence[Part],
    source: Mapping[str, Any],
    tokenizer: BytePairTokenizer,
    size: Mapping[str, int | None],
) -> Manifest:
    """Write the shards of all parts, and the tokenizer beside them; ``size`` are the limits of a shard and of a part.

    The same call goes on after a kill or a stream that broke off, and ends in the bytes of one undisturbed call.

    Raises:
        UsageError: the folder holds data of other settings, the tokenizer has no end of text or too many ids, a stream
            broke off or holds no documents, or the disk is full.
    """
    described = {
        "file": TOKENIZER,
        "fingerprint": tokenizer.fingerprint,
        "vocabulary_size": tokenizer.vocabulary_size,
        "end_of_text": end_of_text(tokenizer),
    }
    settings = {"source": dict(source), "tokenizer": described, "dtype": DTYPE.str, **size}
    writing = ShardFolder(folder, settings, DOCUMENTS, TokenManifest)
    with writing.held():
        writing.put(TOKENIZER, tokenizer.to_bytes())
        shards: list[Shard] = []
        for part in parts:
            found = writing.complete(part.split, part.documents, _Encoder(writing, part, tokenizer, size).make)
            if not found:
                raise UsageError(f"split {part.split!r} has no documents: give a larger corpus")
            shards += found
        for part in parts:
            (folder / POSITION.format(part.split)).unlink(missing_ok=True)
        return writing.finish(shards)


class _Encoder:
    """Encodes a part into shards; reads it on from where its last shard ended."""

    def __init__(
        self, folder: ShardFolder, part: Part, tokenizer: BytePairTokenizer, size: Mapping[str, int | None]
    ) -> None:
        self.folder, self.part, self.tokenizer = folder, part, tokenizer
        self.most_documents, self.most_tokens = size.get("shard_documents") or inf, size.get("shard_tokens") or inf
        self.limit = inf if part.documents < inf else size.get("max_tokens") or inf
        self.stream, self.place = part.read(0), 0

    def make(self, name: str, first: int, before: Sequence[Shard]) -> Shard | None:
        """Write the shard that begins with document ``first``; None: there is none, or the part has enough tokens."""
        most = min(self.most_tokens, self.limit - sum(shard.counts[TOKENS] for shard in before))
        if most <= 0:
            return None
        content, size, documents = bytearray(), 0, 0
        for text, ids in self._encoded(first):
            content += np.array([*ids, self.tokenizer.end_of_text], DTYPE).tobytes()
            size, documents = size + len(text.encode()), documents + 1
            if len(content) >= most * DTYPE.itemsize:
                break
        if not documents:
            return None
        whole = bytes(content)
        self.folder.put(name, whole)
        counts = {DOCUMENTS: documents, TOKENS: len(whole) // DTYPE.itemsize, BYTES: size}
        if self.part.position and self.place == first + documents:
            position = {DOCUMENTS: self.place, "position": self.part.position()}
            self.folder.put(POSITION.format(self.part.split), json.dumps(position).encode())
        print(f"{name}: documents {first:,} to {first + documents:,}, {counts[TOKENS]:,} tokens")
        return Shard(name, self.part.split, counts, sha256_of_bytes(whole))

    def _read_from(self, first: int) -> Iterator[str]:
        try:
            saved = json.loads((self.folder.folder / POSITION.format(self.part.split)).read_bytes())
        except (FileNotFoundError, ValueError):  # ValueError: a damaged file spares nothing
            saved = {}
        if saved.get(DOCUMENTS) == first:
            return self.part.read(first, saved["position"])
        return self.part.read(first)

    def _encoded(self, first: int) -> Iterator[tuple[str, list[int]]]:
        """Yield the texts of a shard that begins with document ``first``, or as many as there are, and their ids."""
        if first != self.place:
            self.stream, self.place = self._read_from(first), first
        last = min(first + self.most_documents, self.part.documents)
        while texts := list(itertools.islice(self.stream, int(min(DOCUMENTS_AT_ONCE, last - self.place)))):
            self.place += len(texts)
            yield from zip(texts, self.tokenizer.encode_many(texts), strict=True)
