"""Token ids in shards of uint16, with a tokenizer beside them: read, checked, written.

The shards of a split, put end to end, are one stream, in which every document is followed by the end of text.  Where
one shard ends and the next begins changes no window.

``write_shards`` writes documents that have a length.  ``write_streams`` writes streams, by one process or several, in
the same bytes whatever their number: blocks of equally many documents, one shard each; block b belongs to rank b mod n.
Every rank reads the whole stream, encodes its own blocks and notes them; none waits for another.  The rank that finds
all blocks there writes the manifest, and removes blocks beyond the tokens asked for.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import locked, sha256_of_bytes
from paper_repro.datamodules.array_shards import (
    LOCK,
    MANIFEST,
    PROGRESS,
    Manifest,
    Shard,
    ShardFolder,
    StoredArrays,
    held,
    shard_name,
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

    kind: ClassVar[str] = "token shards"
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


class TokenFolder(ShardFolder[TokenManifest]):
    """A folder in which documents are encoded; ``size`` are the settings that say what a shard holds."""

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
        super().__init__(folder, settings, TokenManifest)

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
) -> TokenManifest:
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
    documents: float = inf
    """How many are taken; infinite: as many as ``max_tokens`` asks for."""


@dataclass(frozen=True)
class Rank:
    index: int = 0
    count: int = 1


def write_streams(
    folder: Path,
    parts: Sequence[Part],
    source: Mapping[str, Any],
    tokenizer: BytePairTokenizer,
    max_tokens: int | None = None,
    shard_documents: int = SHARD_DOCUMENTS,
    rank: Rank = Rank(),
) -> TokenManifest | None:
    """Encode streams, the end of text after each document, into shards of ``shard_documents`` documents.

    A part without a number of documents ends with the document that brings its tokens, ends of text among them, to
    ``max_tokens``.  The same call goes on after a kill or a stream that broke off, one with more tokens goes on where
    fewer ended, and both end in the bytes of one undisturbed call.

    Returns:
        The manifest; None where other ranks have blocks to finish.

    Raises:
        UsageError: the folder holds more tokens or data of other settings, the tokenizer has no end of text or too many
            ids, a stream broke off or holds no documents, or the disk is full.
    """
    size = {"shard_documents": at_least("shard_documents", shard_documents), MAX_TOKENS: max_tokens}
    writing = _StreamFolder(folder, source, tokenizer, **size)
    with held(folder, f"{LOCK}-{rank.index}"):
        with locked(folder / LOCK):
            writing.limited = {part.split for part in parts if part.documents == inf}
            writing.begin()
        for part in parts:
            writing.share(part, rank)
        with locked(folder / LOCK):
            return writing.assembled(parts)


class _StreamFolder(TokenFolder):
    limited: set[str]
    """The splits that end with ``max_tokens``."""
    reading: tuple[Part, Iterator[str]] | None = None
    place = 0

    @property
    def block(self) -> int:
        return int(self.settings["shard_documents"])

    def known(self) -> dict[str, Shard]:
        """Return the shards that any rank, now or earlier, has noted and that this call would write."""
        return self._noted(MANIFEST) | self._noted(PROGRESS)

    def _noted(self, name: str) -> dict[str, Shard]:
        try:
            earlier = TokenManifest.read(self.folder / name)
        except FileNotFoundError:  # never written, or just removed by the rank that wrote the manifest
            return {}
        wanted, found = self.settings[MAX_TOKENS], earlier.settings.get(MAX_TOKENS)
        self.compare({**earlier.settings, MAX_TOKENS: wanted})
        if (wanted or inf) < (found or inf):
            raise UsageError(
                f"{self.folder} was prepared with max_tokens {found or 'unlimited'}, asked for are only {wanted}: what "
                "is there is read as it is; for fewer, prepare into another with --folder"
            )
        return {
            shard.file: shard
            for shard in earlier.shards
            if wanted == found or shard.split not in self.limited or shard.counts[DOCUMENTS] == self.block
        }

    def _blocks(self, split: str) -> float:
        """Return the number of blocks of a split in a manifest of as many tokens; infinite without one."""
        try:
            manifest = TokenManifest.read(self.folder / MANIFEST)
        except FileNotFoundError:
            return inf
        same = manifest.settings.get(MAX_TOKENS) == self.settings[MAX_TOKENS]
        return sum(shard.split == split for shard in manifest.shards) if same else inf

    def is_whole(self, shard: Shard, tell: bool = True) -> bool:
        return not shard.counts[DOCUMENTS] or super().is_whole(shard, tell)

    def needed(self, part: Part, rank: Rank) -> Iterator[tuple[int, Shard | None, float]]:
        """Yield the number of each block that a rank has of a part, its shard if it is known, and the tokens that are
        wanted of it; until those before are known to be enough.
        """
        for index in itertools.count(rank.index, rank.count):
            known = self.known()
            before = (known.get(shard_name(part.split, earlier)) for earlier in range(index))
            most = (self.settings[MAX_TOKENS] or inf) if part.split in self.limited else inf
            left = most - sum(shard.counts[TOKENS] for shard in before if shard)
            if left <= 0 or index >= self._blocks(part.split) or index * self.block >= part.documents:
                return
            yield index, known.get(shard_name(part.split, index)), left
            done = self.known().get(shard_name(part.split, index))
            if done is not None and done.counts[DOCUMENTS] < self.block:  # the stream has ended
                return

    def share(self, part: Part, rank: Rank) -> None:
        """Write the blocks of a part that belong to this rank."""
        for index, known, left in self.needed(part, rank):
            whole = known is not None and self.is_whole(known)
            shard = known if known and whole else self._write_block(part, index, left)
            if not index and not shard.counts[DOCUMENTS]:
                raise UsageError(f"split {part.split!r} has no documents: give a larger corpus")
            with locked(self.folder / LOCK):
                self.note(PROGRESS, {**self.known(), shard.file: shard}.values())

    def _write_block(self, part: Part, index: int, most_tokens: float) -> Shard:
        first = index * self.block
        shard = self.encode(shard_name(part.split, index), part.split, self._texts(part, first), most_tokens)
        documents, tokens = shard.counts[DOCUMENTS], shard.counts[TOKENS]
        if documents:
            print(f"{shard.file}: documents {first:,} to {first + documents:,}, {tokens:,} tokens")
        return shard

    def _texts(self, part: Part, first: int) -> Iterator[Sequence[str]]:
        """Yield a block's texts, some at a time, read on from where the last block ended."""
        if self.reading is None or self.reading[0] is not part or self.place > first:
            self.reading, self.place = (part, part.read(first)), first
        stream = self.reading[1]
        for _ in itertools.islice(stream, first - self.place):
            pass
        self.place, last = first, min(first + self.block, part.documents)
        while texts := list(itertools.islice(stream, int(min(DOCUMENTS_AT_ONCE, last - self.place)))):
            self.place += len(texts)
            yield texts

    def assembled(self, parts: Sequence[Part]) -> TokenManifest | None:
        """Write the manifest of all ranks' shards, cut at the tokens asked for; None as long as one is missing."""
        found: list[tuple[Part, int, Shard, float]] = []
        for part in parts:
            for index, shard, left in self.needed(part, Rank()):
                if shard is None or not self.is_whole(shard, tell=False):
                    print(f"{shard_name(part.split, index)} is still to come from another rank")
                    return None
                found.append((part, index, shard, left))
        shards = [  # cut only now: the notes of a shard that is cut no longer hold
            self._write_block(part, index, left) if self._goes_beyond(shard, left) else shard
            for part, index, shard, left in found
            if shard.counts[DOCUMENTS]
        ]
        manifest = self.note(MANIFEST, shards)
        names = {shard.file for shard in shards}
        beyond = [path for part in parts for path in self.folder.glob(f"{part.split}-*.bin") if path.name not in names]
        for path in [self.folder / PROGRESS, *beyond]:
            path.unlink(missing_ok=True)
        return manifest

    def _goes_beyond(self, shard: Shard, most_tokens: float) -> bool:
        """Return whether ``most_tokens`` are reached before a shard's last document."""
        if shard.counts[TOKENS] < most_tokens:
            return False
        ends = np.flatnonzero(np.fromfile(self.folder / shard.file, DTYPE) == self.end)
        return len(ends) > 1 and int(ends[-2]) + 1 >= most_tokens
