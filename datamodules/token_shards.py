"""Token ids in shards of uint16, with a tokenizer beside them: read, checked, written.

The shards of a split, put end to end, are one stream, in which every document is followed by the end of text.  Where
one shard ends and the next begins changes no window.

``write_shards`` writes documents that have a length; ``write_streams`` writes streams, equally many documents a shard.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import sha256_of_bytes
from paper_repro.datamodules.array_shards import (
    PROGRESS,
    Manifest,
    Shard,
    ShardFolder,
    StoredArrays,
    held,
)
from paper_repro.datamodules.tokenizers import BytePairTokenizer, end_of_text

TOKENIZER = "tokenizer.json"
DTYPE = np.dtype("<u2")
DOCUMENTS, TOKENS, BYTES = "documents", "tokens", "bytes"
"""The counts of a shard: the bytes are those of its documents in UTF-8."""
ARRAYS = {TOKENS: DTYPE}
SHARD_TOKENS, SHARD_DOCUMENTS = 2**26, 2**16
DOCUMENTS_AT_ONCE = 512
MAX_TOKENS = "max_tokens"


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

    def summary(self) -> list[str]:
        lines = [
            f"{split}: {total[DOCUMENTS]:,} documents, {total[TOKENS]:,} tokens, "
            f"{total[BYTES] / total[TOKENS]:.3f} bytes a token"
            for split, total in self.totals().items()
        ]
        return [*lines, f"{self.vocabulary_size} token ids"]


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


class TokenFolder(ShardFolder):
    """A folder in which documents are encoded; ``size`` are the settings that say what a shard holds."""

    kind = TokenManifest

    def __init__(
        self, folder: Path, source: Mapping[str, Any], tokenizer: BytePairTokenizer, **size: int | None
    ) -> None:
        self.tokenizer, self.end = tokenizer, end_of_text(tokenizer)
        described = {
            "file": TOKENIZER,
            "fingerprint": tokenizer.fingerprint,
            "vocabulary_size": tokenizer.vocabulary_size,
            "end_of_text": self.end,
        }
        settings = {"source": dict(source), "tokenizer": described, "dtype": DTYPE.str, **size}
        super().__init__(folder, settings)

    def begin(self) -> None:
        """Compare the settings and write the tokenizer."""
        self.known()
        self.put(TOKENIZER, self.tokenizer.to_bytes())

    def encode(self, name: str, split: str, texts: Iterable[Sequence[str]], most_tokens: float) -> Shard:
        """Encode texts, read some at a time, into one shard; the one that brings it to ``most_tokens`` is its last.

        Without a text there is no file, and a shard of no documents comes back.
        """
        content, size, documents = bytearray(), 0, 0
        encoded = ((some, self.tokenizer.encode_many(some)) for some in texts)
        for text, ids in itertools.chain.from_iterable(zip(*pair, strict=True) for pair in encoded):
            content += np.array([*ids, self.end], DTYPE).tobytes()
            size, documents = size + len(text.encode()), documents + 1
            if len(content) >= most_tokens * DTYPE.itemsize:
                break
        whole = bytes(content)
        if whole:
            self.put(name, whole)
        counts = {DOCUMENTS: documents, TOKENS: len(whole) // DTYPE.itemsize, BYTES: size}
        return Shard(name, split, counts, sha256_of_bytes(whole))


def write_shards(
    folder: Path,
    splits: Mapping[str, Sequence[str]],
    source: Mapping[str, Any],
    tokenizer: BytePairTokenizer,
    shard_tokens: int = SHARD_TOKENS,
) -> Manifest:
    """Encode every document, the end of text after each, into shards of whole documents.

    A shard is closed by the document that brings it to ``shard_tokens``.  The same call goes on after a kill, and ends
    in the same bytes as one that was never disturbed.

    Raises:
        UsageError: the folder holds data of other settings, the tokenizer has no end of text or too many ids, or the
            disk is full.
    """
    writing = TokenFolder(folder, source, tokenizer, shard_tokens=at_least("shard_tokens", shard_tokens))

    def make(name: str, split: str, first: int) -> Shard:
        documents = splits[split]
        slices = (documents[at : at + DOCUMENTS_AT_ONCE] for at in range(first, len(documents), DOCUMENTS_AT_ONCE))
        shard = writing.encode(name, split, slices, shard_tokens)
        print(f"{name}: documents {first:,} to {first + shard.counts[DOCUMENTS]:,} of {len(documents):,}")
        return shard

    with held(folder):
        writing.begin()
        counts = {split: len(documents) for split, documents in splits.items()}
        return writing.finish(writing.in_order(counts, make, lambda shard: shard.counts[DOCUMENTS] if shard else 0))


@dataclass(frozen=True)
class Part:
    """The stream of one split."""

    split: str
    read: Callable[[int], Iterator[str]]
    """From the number of a document to the texts from that one on."""
    documents: float = inf
    """How many are taken; infinite: as many as ``max_tokens`` asks for."""


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
    ``max_tokens``.  The same call goes on after a kill or a stream that broke off, one with more tokens goes on where
    fewer ended, and both end in the bytes of one undisturbed call.

    Raises:
        UsageError: the folder holds more tokens or data of other settings, the tokenizer has no end of text or too many
            ids, a stream broke off or holds no documents, or the disk is full.
    """
    size = {"shard_documents": at_least("shard_documents", shard_documents), MAX_TOKENS: max_tokens}
    writing = _StreamFolder(folder, source, tokenizer, **size)
    writing.limited = {part.split for part in parts if part.documents == inf}
    left = {part.split: max_tokens or inf if part.split in writing.limited else inf for part in parts}
    streams = {part.split: _Stream(part) for part in parts}

    def make(name: str, split: str, first: int) -> Shard | None:
        shard = writing.encode(name, split, streams[split].texts(first, shard_documents), left[split])
        if not shard.counts[DOCUMENTS]:
            return None
        print(f"{name}: documents {first:,} to {first + shard.counts[DOCUMENTS]:,}, {shard.counts[TOKENS]:,} tokens")
        return shard

    def used(shard: Shard | None) -> float:
        if shard is None or shard.counts[DOCUMENTS] < shard_documents:  # the stream has ended
            return inf
        left[shard.split] -= shard.counts[TOKENS]
        return shard_documents if left[shard.split] > 0 else inf

    with held(folder):
        writing.begin()
        finished = writing.finished()
        shards = writing.in_order({part.split: finished.get(part.split, part.documents) for part in parts}, make, used)
        if empty := left.keys() - {shard.split for shard in shards}:
            raise UsageError(f"split {min(empty)!r} has no documents: give a larger corpus")
        return writing.finish(shards)


class _Stream:
    """Reads a part on from where its last block ended."""

    def __init__(self, part: Part) -> None:
        self.part, self.stream, self.place = part, part.read(0), 0

    def texts(self, first: int, count: int) -> Iterator[Sequence[str]]:
        """Yield so many texts from number ``first`` on, or as many as there are, some at a time."""
        if first != self.place:
            self.stream, self.place = self.part.read(first), first
        last = min(first + count, self.part.documents)
        while texts := list(itertools.islice(self.stream, int(min(DOCUMENTS_AT_ONCE, last - self.place)))):
            self.place += len(texts)
            yield texts


class _StreamFolder(TokenFolder):
    limited: set[str]
    """The splits that end with ``max_tokens``."""

    def known(self) -> dict[str, Shard]:
        """Return the shards that an earlier call, perhaps for fewer tokens, finished and that this one would write."""
        earlier = self.earlier()
        if earlier is None:
            return {}
        wanted, found = self.settings[MAX_TOKENS], earlier.settings.get(MAX_TOKENS)
        self.compare({**earlier.settings, MAX_TOKENS: wanted})
        if (wanted or inf) < (found or inf):
            raise UsageError(
                f"{self.folder} was prepared with max_tokens {found or 'unlimited'}, asked for are only {wanted}: what "
                "is there is read as it is; for fewer, prepare into another with --folder"
            )
        block = self.settings["shard_documents"]
        return {
            shard.file: shard
            for shard in earlier.shards
            if wanted == found or shard.split not in self.limited or shard.counts[DOCUMENTS] == block
        }

    def finished(self) -> dict[str, int]:
        """Return the number of documents of each split where all that is asked for was written before."""
        earlier = None if (self.folder / PROGRESS).is_file() else self.earlier()
        if earlier is None or earlier.settings.get(MAX_TOKENS) != self.settings[MAX_TOKENS]:
            return {}
        return {split: total[DOCUMENTS] for split, total in earlier.totals().items()}
