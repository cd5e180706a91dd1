"""Token ids in shards of uint16, with a tokenizer beside them: read, checked, written.

The shards of a split, put end to end, are one stream, in which every document is followed by the end of text.  Where
one shard ends and the next begins changes no window.  nanoGPT's ``train.bin`` and ``val.bin`` are such streams without
a manifest.

``write_shards`` writes documents that have a length.  ``write_streams`` writes streams, by one process or several, in
the same bytes whatever their number: the documents of a split are cut into blocks of equally many, one shard each, and
block b belongs to rank b mod n.  Every rank reads the whole stream, encodes its own blocks and notes them beside the
shards; none waits for another.  The rank that finds all blocks there when it ends writes the manifest, and removes
blocks beyond the tokens asked for, which ranks encoded that did not know of each other's.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import locked, sha256_of_bytes
from paper_repro.datamodules.array_shards import (
    LOCK,
    MANIFEST,
    PROGRESS,
    Array,
    Content,
    Manifest,
    Shard,
    ShardFolder,
    StoredArrays,
    content_of,
    held,
    shard_name,
    size_of,
)
from paper_repro.datamodules.tokenizers import BytePairTokenizer, end_of_text

TOKENIZER = "tokenizer.json"
DTYPE = np.dtype("<u2")
DOCUMENTS, TOKENS, BYTES = "documents", "tokens", "bytes"
"""The counts of a shard: the bytes are those of its documents in UTF-8."""
ARRAYS = {TOKENS: Array(DTYPE)}
VERSIONS = frozenset({"python", "packages"})
"""What older manifests say of the source of docstrings."""
SHARD_TOKENS, SHARD_DOCUMENTS = 2**26, 2**16
DOCUMENTS_AT_ONCE = 512
MAX_TOKENS = "max_tokens"
Say = Callable[[str], None]


class TokenManifest(Manifest):
    """What a folder of token shards holds.

    Its settings are: source, split rule, tokenizer with its fingerprint, shard size, dtype.  They name no ``arrays``,
    because there is only one.
    """

    kind: ClassVar[str] = "token shards"
    scanned: ClassVar[np.dtype[Any] | None] = DTYPE

    @classmethod
    def renewed(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the content as it is written today; the source of docstrings once named versions."""
        if "source" not in content:
            return content
        return {**content, "source": {key: value for key, value in content["source"].items() if key not in VERSIONS}}

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

    @property
    def arrays(self) -> dict[str, Array]:
        return ARRAYS

    def check_settings(self) -> None:
        super().check_settings()
        _ = self.vocabulary_size, self.fingerprint, self.end_of_text
        for shard in self.shards:
            _ = shard.counts[DOCUMENTS], shard.counts[BYTES]

    def check(self, folder: Path, shard: Shard, stamps: Path | None = None) -> Content:
        """Compare a file with what the manifest says, and its ids with the vocabulary; UsageError as for ``Manifest``
        or for an id that the vocabulary lacks.
        """
        found = super().check(folder, shard, stamps)
        _check_ids(folder / shard.file, found, self.vocabulary_size)
        return found

    def verify(self, folder: Path) -> None:
        """Read the tokenizer and every shard again; UsageError for what is missing, altered or another's."""
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


def check_ids(path: Path, vocabulary_size: int, stamps: Path | None = None) -> None:
    """Check a file of ids that no manifest describes; UsageError: it is missing or empty, ends in half an id, or holds
    an id that the vocabulary lacks.
    """
    size = size_of(path)
    if not size or size % DTYPE.itemsize:
        raise UsageError(
            f"{path}: this shard has {size:,} bytes, expected an even number above 0: it is truncated or altered"
        )
    _check_ids(path, content_of(path, DTYPE, stamps), vocabulary_size)


def _check_ids(path: Path, content: Content, vocabulary_size: int) -> None:
    if content.largest is not None and content.largest >= vocabulary_size:
        raise UsageError(
            f"{path}: holds token id {content.largest}, expected ids below {vocabulary_size}, the vocabulary"
        )


class TokenStream(StoredArrays):
    """The shards of one split, end to end; ``paths`` are in order."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(paths, [path.stat().st_size // DTYPE.itemsize for path in paths], ARRAYS)

    def window(self, start: int, length: int) -> npt.NDArray[np.uint16]:
        """Return the ids from ``start`` on, (length,), across the ends of shards."""
        pieces = []
        while length:
            shard = self.shard_at(start)
            ids = self.map(shard)[TOKENS]
            offset = start - self.ends[shard] + len(ids)
            pieces.append(ids[offset : offset + length])
            start, length = start + len(pieces[-1]), length - len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def path_at(self, place: int) -> Path:
        """Return the shard that holds a place of the stream."""
        return self.paths[self.shard_at(place)]


# Writing.


class Documents(Protocol):
    """Texts that are read in slices; a list of them is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice, /) -> Sequence[str]: ...


class TokenFolder(ShardFolder[TokenManifest]):
    """A folder in which documents are encoded.

    Args:
        folder: that of the shards.
        source: where the documents come from.
        tokenizer: encodes them.
        say: is told of damaged shards.
        size: the settings that say what a shard holds.

    Raises:
        UsageError: as ``end_of_text``.
    """

    def __init__(
        self, folder: Path, source: Mapping[str, Any], tokenizer: BytePairTokenizer, say: Say, **size: int | None
    ) -> None:
        self.tokenizer, self.end = tokenizer, end_of_text(tokenizer)
        described = {
            "file": TOKENIZER,
            "fingerprint": tokenizer.fingerprint,
            "vocabulary_size": tokenizer.vocabulary_size,
            "end_of_text": self.end,
        }
        settings = {"source": dict(source), "tokenizer": described, "dtype": DTYPE.str, **size}
        super().__init__(folder, settings, TokenManifest, say)

    def put_tokenizer(self) -> None:
        """Write the tokenizer beside the shards."""
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
    splits: Mapping[str, Documents],
    source: Mapping[str, Any],
    tokenizer: BytePairTokenizer,
    shard_tokens: int = SHARD_TOKENS,
    say: Say = print,
) -> TokenManifest:
    """Encode every document, the end of text after each, into shards of whole documents.

    A shard is closed by the document that brings it to ``shard_tokens``.  Each is written whole or not at all, and then
    noted in ``progress.json``; the manifest comes last.  The same call goes on after a kill, makes again what is
    missing or damaged, and ends in the same bytes as one that was never disturbed.

    Raises:
        UsageError: the folder holds data of other settings, the tokenizer has no end of text or more ids than uint16
            holds, a split has no documents, or the disk is full.
    """
    writing = TokenFolder(folder, source, tokenizer, say, shard_tokens=at_least("shard_tokens", shard_tokens))
    for split, documents in splits.items():
        if not len(documents):
            raise UsageError(f"split {split!r} has no documents: give a larger corpus")

    def make(name: str, split: str, first: int) -> Shard:
        documents = splits[split]
        slices = (documents[at : at + DOCUMENTS_AT_ONCE] for at in range(first, len(documents), DOCUMENTS_AT_ONCE))
        shard = writing.encode(name, split, slices, shard_tokens)
        say(f"{name}: documents {first:,} to {first + shard.counts[DOCUMENTS]:,} of {len(documents):,}")
        return shard

    with held(folder):
        writing.known()  # compares the settings before a file is changed
        writing.put_tokenizer()
        counts = {split: len(documents) for split, documents in splits.items()}
        return writing.finish(writing.in_order(counts, make, lambda shard: shard.counts[DOCUMENTS] if shard else 0))


@dataclass(frozen=True)
class Part:
    """The stream of one split."""

    split: str
    read: Callable[[int], Iterator[str]]
    """The texts from a document on, counted from 0."""
    documents: int | None = None
    """How many are taken; None: as many as ``max_tokens`` asks for."""

    @property
    def most(self) -> float:
        return inf if self.documents is None else self.documents

    def name(self, index: int) -> str:
        return shard_name(self.split, index)


@dataclass(frozen=True)
class Rank:
    """Which of how many processes this is."""

    index: int = 0
    count: int = 1


ALONE = Rank()


def write_streams(
    folder: Path,
    parts: Sequence[Part],
    source: Mapping[str, Any],
    tokenizer: BytePairTokenizer,
    max_tokens: int | None = None,
    shard_documents: int = SHARD_DOCUMENTS,
    rank: Rank = ALONE,
    say: Say = print,
) -> TokenManifest | None:
    """Encode streams, the end of text after each document, into shards of ``shard_documents`` documents.

    A part without a number of documents ends with the document that brings its tokens, ends of text among them, to
    ``max_tokens``.  Shards are written whole or not at all.  The same call goes on after a kill or a stream that broke
    off, one with more tokens goes on where fewer ended, and both end in the bytes of one undisturbed call.

    Returns:
        The manifest; None where other ranks have blocks to finish.

    Raises:
        UsageError: the folder holds more tokens or data of other settings, the tokenizer has no end of text or too many
            ids, a stream broke off or holds no documents, or the disk is full.
    """
    size = {"shard_documents": at_least("shard_documents", shard_documents), MAX_TOKENS: max_tokens}
    writing = _Streaming(folder, source, tokenizer, say, **size)
    with held(folder, f"{LOCK}-{rank.index}"):
        return writing.run(parts, rank)


class _Streaming(TokenFolder):
    def run(self, parts: Sequence[Part], rank: Rank) -> TokenManifest | None:
        self.block: int = self.settings["shard_documents"]
        self.limited = {part.split for part in parts if part.documents is None}
        self.reading: tuple[Part, Iterator[str]] | None = None
        self.place = 0
        with locked(self.folder / LOCK):
            self.known()
            self.put_tokenizer()
        for part in parts:
            self._share(part, rank)
        with locked(self.folder / LOCK):
            return self._assembled(parts)

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

    def is_whole(self, shard: Shard, tell: bool = True) -> bool:
        return not shard.counts[DOCUMENTS] or super().is_whole(shard, tell)

    def _share(self, part: Part, rank: Rank) -> None:
        """Write the blocks of a part that belong to this rank, until those before are known to be enough."""
        for index in itertools.count(rank.index, rank.count):
            known = self.known()
            before = (known.get(part.name(earlier)) for earlier in range(index))
            left = self._most_tokens(part) - sum(shard.counts[TOKENS] for shard in before if shard)
            if left <= 0 or index * self.block >= part.most:
                return
            shard = known.get(part.name(index))
            if shard is None or not self.is_whole(shard):
                shard = self._write_block(part, index, left)
            if not index and not shard.counts[DOCUMENTS]:
                raise UsageError(f"split {part.split!r} has no documents: give a larger corpus")
            with locked(self.folder / LOCK):
                self.note(PROGRESS, {**self.known(), shard.file: shard}.values())
            if shard.counts[DOCUMENTS] < self.block:
                return

    def _most_tokens(self, part: Part) -> float:
        return self.settings[MAX_TOKENS] or inf if part.documents is None else inf

    def _write_block(self, part: Part, index: int, most_tokens: float) -> Shard:
        first = index * self.block
        shard = self.encode(part.name(index), part.split, self._texts(part, first), most_tokens)
        documents, tokens = shard.counts[DOCUMENTS], shard.counts[TOKENS]
        if documents:
            self.say(f"{shard.file}: documents {first:,} to {first + documents:,}, {tokens:,} tokens")
        return shard

    def _texts(self, part: Part, first: int) -> Iterator[Sequence[str]]:
        """Yield a block's texts, some at a time, read on from where the last block ended."""
        if self.reading is None or self.reading[0] is not part or self.place > first:
            self.reading, self.place = (part, part.read(first)), first
        stream = self.reading[1]
        for _ in itertools.islice(stream, first - self.place):
            pass
        self.place, last = first, min(first + self.block, part.most)
        while texts := list(itertools.islice(stream, int(min(DOCUMENTS_AT_ONCE, last - self.place)))):
            self.place += len(texts)
            yield texts

    def _assembled(self, parts: Sequence[Part]) -> TokenManifest | None:
        shards = self._finished() or self._gathered(parts)
        if not shards:
            return None
        manifest = self.note(MANIFEST, shards)
        names = {shard.file for shard in shards}
        beyond = [path for part in parts for path in self.folder.glob(f"{part.split}-*.bin") if path.name not in names]
        for path in [self.folder / PROGRESS, *beyond]:
            path.unlink(missing_ok=True)
        return manifest

    def _finished(self) -> list[Shard]:
        """Return the shards of a manifest of this call's settings that is there already; none if one is damaged."""
        try:
            manifest = TokenManifest.read(self.folder / MANIFEST)
        except FileNotFoundError:
            return []
        same = manifest.settings == self.settings
        return [*manifest.shards] if same and all(self.is_whole(shard, False) for shard in manifest.shards) else []

    def _gathered(self, parts: Sequence[Part]) -> list[Shard]:
        """Return all ranks' shards, what is beyond the tokens asked for cut off; none as long as one is missing."""
        found = [self._found(part) for part in parts]
        shards: list[Shard] = []
        if not all(found):
            return []
        for part, blocks in zip(parts, found, strict=True):  # cut only now: the notes of a shard cut no longer hold
            left = self._most_tokens(part) - sum(shard.counts[TOKENS] for shard in blocks[:-1])
            if self._goes_beyond(blocks[-1], left):
                blocks[-1] = self._write_block(part, len(blocks) - 1, left)
            shards += [shard for shard in blocks if shard.counts[DOCUMENTS]]
        return shards

    def _found(self, part: Part) -> list[Shard]:
        """Return the blocks of a part up to the one that is enough; none if one is missing."""
        known = self.known()
        blocks: list[Shard] = []
        left = self._most_tokens(part)
        while left > 0 and len(blocks) * self.block < part.most:
            shard = known.get(part.name(len(blocks)))
            if shard is None or not self.is_whole(shard, tell=False):
                self.say(f"{part.name(len(blocks))} is still to come from another rank")
                return []
            blocks.append(shard)
            left -= shard.counts[TOKENS]
            if shard.counts[DOCUMENTS] < self.block:
                break
        return blocks

    def _goes_beyond(self, shard: Shard, most_tokens: float) -> bool:
        """Return whether ``most_tokens`` are reached before a shard's last document."""
        if shard.counts[TOKENS] < most_tokens:
            return False
        ends = np.flatnonzero(np.fromfile(self.folder / shard.file, DTYPE) == self.end)
        return len(ends) > 1 and int(ends[-2]) + 1 >= most_tokens
