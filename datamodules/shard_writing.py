"""Documents to token shards, shard by shard, so that a preparation that was killed goes on where it was.

``write_shards`` writes documents that have a length.  ``write_streams`` writes streams, by one process or several, in
the same bytes whatever their number: the documents of a split are cut into blocks of equally many, one shard each, and
block b belongs to rank b mod n.  Every rank reads the whole stream, encodes its own blocks and notes them beside the
shards, which all ranks see; none waits for another.  The rank that finds all blocks there when it ends writes the
manifest, and removes blocks beyond the tokens asked for, which ranks encoded that did not know of each other's.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import locked, sha256_of_bytes
from paper_repro.datamodules.array_shards import MANIFEST, Shard
from paper_repro.datamodules.array_writing import LOCK, PROGRESS, ShardFolder, held, shard_name
from paper_repro.datamodules.token_shards import BYTES, DOCUMENTS, DTYPE, MOST_IDS, TOKENIZER, TOKENS, TokenManifest
from paper_repro.datamodules.tokenizers import END_TOKENS, BytePairTokenizer

SHARD_TOKENS = 2**26
DOCUMENTS_AT_ONCE = 512


class Documents(Protocol):
    """Texts that are read in slices; a list of them is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice, /) -> Sequence[str]: ...


def write_shards(
    folder: Path,
    splits: Mapping[str, Documents],
    source: Mapping[str, Any],
    tokenizer: BytePairTokenizer,
    shard_tokens: int = SHARD_TOKENS,
    say: Callable[[str], None] = print,
) -> TokenManifest:
    """Encode every document, the end of text after each, into shards of whole documents.

    A shard is closed by the document that brings it to ``shard_tokens``.  Each is written whole or not at all, and then
    noted in ``progress.json``; the manifest comes last.  The same call goes on after a kill, makes again what is
    missing or damaged, and ends in the same bytes as one that was never disturbed.

    Raises:
        UsageError: the folder holds data of other settings, the tokenizer has no end of text or more ids than uint16
            holds, a split has no documents, or the disk is full.
    """
    settings = settings_of(source, tokenizer, shard_tokens=at_least("shard_tokens", shard_tokens))
    for split, documents in splits.items():
        if not len(documents):
            raise UsageError(f"split {split!r} has no documents: give a larger corpus")
    with held(folder):
        writing = TokenFolder(folder, settings, tokenizer, say)

        def make(name: str, split: str, first: int) -> Shard:
            shard = writing.encode(name, split, _slices(splits[split], first), shard_tokens)
            last = first + shard.counts[DOCUMENTS]
            say(f"{name}: documents {first:,} to {last:,} of {len(splits[split]):,}")
            return shard

        writing.known()  # compares the settings before a file is changed
        writing.put_tokenizer()
        counts = {split: len(documents) for split, documents in splits.items()}
        return writing.finish(writing.in_order(counts, make, lambda shard: shard.counts[DOCUMENTS] if shard else 0))


def settings_of(source: Mapping[str, Any], tokenizer: BytePairTokenizer, **size: Any) -> dict[str, Any]:
    """Return all that the content of a folder of shards depends on.

    Raises:
        UsageError: as ``end_of_text``.
    """
    return {
        "source": dict(source),
        "tokenizer": {
            "file": TOKENIZER,
            "fingerprint": tokenizer.fingerprint,
            "vocabulary_size": tokenizer.vocabulary_size,
            "end_of_text": end_of_text(tokenizer),
        },
        "dtype": DTYPE.str,
        **size,
    }


def end_of_text(tokenizer: BytePairTokenizer) -> int:
    """Return the id that is written after each document.

    Raises:
        UsageError: the tokenizer has none, or more ids than uint16 holds.
    """
    if tokenizer.end_of_text is None:
        raise UsageError(
            f"the tokenizer has no token that ends a document, none of {', '.join(END_TOKENS)}: give GPT-2's or "
            "LLaMA-2's, or add one of these to its special tokens"
        )
    if tokenizer.vocabulary_size > MOST_IDS:
        raise UsageError(
            f"the tokenizer has {tokenizer.vocabulary_size} ids, uint16 holds {MOST_IDS}: give a smaller one"
        )
    return tokenizer.end_of_text


class TokenFolder(ShardFolder[TokenManifest]):
    """A folder in which documents are encoded.

    Args:
        folder: that of the shards.
        settings: all that their content depends on.
        tokenizer: that of the settings.
        say: is told of damaged shards.
    """

    def __init__(
        self, folder: Path, settings: dict[str, Any], tokenizer: BytePairTokenizer, say: Callable[[str], None] = print
    ) -> None:
        super().__init__(folder, settings, TokenManifest, say)
        self.tokenizer = tokenizer
        self.end = settings["tokenizer"]["end_of_text"]

    def put_tokenizer(self) -> None:
        """Write the tokenizer beside the shards."""
        self.put(TOKENIZER, self.tokenizer.to_bytes())

    def encode(self, name: str, split: str, texts: Iterable[Sequence[str]], most_tokens: float) -> Shard:
        """Encode texts, read some at a time, into one shard; the one that brings it to ``most_tokens`` is its last.

        Without a text there is no file, and a shard of no documents comes back.
        """
        content, size, documents = bytearray(), 0, 0
        for some in texts:
            for text, ids in zip(some, self.tokenizer.encode_many(some), strict=True):
                content += np.array([*ids, self.end], DTYPE).tobytes()
                size, documents = size + len(text.encode()), documents + 1
                if len(content) >= most_tokens * DTYPE.itemsize:
                    break
            if len(content) >= most_tokens * DTYPE.itemsize:
                break
        whole = bytes(content)
        if whole:
            self.put(name, whole)
        counts = {DOCUMENTS: documents, TOKENS: len(whole) // DTYPE.itemsize, BYTES: size}
        return Shard(name, split, counts, sha256_of_bytes(whole))


def _slices(documents: Documents, first: int) -> Iterator[Sequence[str]]:
    for start in range(first, len(documents), DOCUMENTS_AT_ONCE):
        yield documents[start : start + DOCUMENTS_AT_ONCE]


SHARD_DOCUMENTS = 2**16
NOTES = "progress*.json"
MAX_TOKENS = "max_tokens"


@dataclass(frozen=True)
class Part:
    """The stream of one split."""

    split: str
    read: Callable[[int], Iterator[str]]
    """The texts from a document on, counted from 0."""
    documents: int | None = None
    """How many are taken; None: as many as ``max_tokens`` asks for."""


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
    say: Callable[[str], None] = print,
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
    settings = settings_of(
        source, tokenizer, shard_documents=at_least("shard_documents", shard_documents), max_tokens=max_tokens
    )
    with held(folder, f"{LOCK}-{rank.index}"):
        return _Streaming(folder, settings, tokenizer, say).run(parts, rank)


class _Streaming(TokenFolder):
    def run(self, parts: Sequence[Part], rank: Rank) -> TokenManifest | None:
        self.block: int = self.settings["shard_documents"]
        self.limited = {part.split for part in parts if part.documents is None}
        self.notes = f"progress-{rank.index}.json" if rank.index else PROGRESS
        self.reading: tuple[Part, Iterator[str]] | None = None
        self.place = 0
        with locked(self.folder / LOCK):
            self._known_to_all()
            self.put_tokenizer()
        self.own = self._noted(self.folder / self.notes)
        for part in parts:
            self._share(part, rank)
        with locked(self.folder / LOCK):
            return self._assembled(parts)

    def _noted(self, path: Path) -> dict[str, Shard]:
        """Return the shards in a file of notes that are what this call would write."""
        try:
            earlier = TokenManifest.read(path)
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

    def _known_to_all(self) -> dict[str, Shard]:
        """Return the shards that any rank, now or earlier, has noted."""
        known = self._noted(self.folder / MANIFEST)
        for path in sorted(self.folder.glob(NOTES)):
            known |= self._noted(path)
        return known | self._noted(self.folder / self.notes)

    def is_whole(self, shard: Shard, tell: bool = True) -> bool:
        return not shard.counts[DOCUMENTS] or super().is_whole(shard, tell)

    def _share(self, part: Part, rank: Rank) -> None:
        """Write the blocks of a part that belong to this rank, until those before are known to be enough."""
        for index in itertools.count(rank.index, rank.count):
            known = self._known_to_all()
            before = (known.get(_name(part, earlier)) for earlier in range(index))
            left = self._most_tokens(part) - sum(shard.counts[TOKENS] for shard in before if shard)
            if left <= 0 or index * self.block >= (part.documents or inf):
                return
            shard = known.get(_name(part, index))
            if shard is None or not self.is_whole(shard):
                shard = self._write_block(part, index, left)
            if not index and not shard.counts[DOCUMENTS]:
                raise UsageError(f"split {part.split!r} has no documents: give a larger corpus")
            self.own[shard.file] = shard
            self.note(self.notes, self.own.values())
            if shard.counts[DOCUMENTS] < self.block:
                return

    def _most_tokens(self, part: Part) -> float:
        return self.settings[MAX_TOKENS] or inf if part.documents is None else inf

    def _write_block(self, part: Part, index: int, most_tokens: float) -> Shard:
        first = index * self.block
        shard = self.encode(_name(part, index), part.split, self._texts(part, first), most_tokens)
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
        self.place, last = first, min(first + self.block, part.documents or inf)
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
        for path in [*self.folder.glob(NOTES), *beyond]:
            path.unlink(missing_ok=True)
        return manifest

    def _finished(self) -> list[Shard]:
        """Return the shards of a manifest that another rank, or the same call earlier, wrote; none if one is
        damaged.
        """
        try:
            manifest = TokenManifest.read(self.folder / MANIFEST)
        except FileNotFoundError:
            return []
        whole = manifest.settings == self.settings and all(
            self.is_whole(shard, tell=False) for shard in manifest.shards
        )
        return list(manifest.shards) if whole else []

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
        known = self._known_to_all()
        blocks: list[Shard] = []
        left = self._most_tokens(part)
        while left > 0 and len(blocks) * self.block < (part.documents or inf):
            name = _name(part, len(blocks))
            shard = known.get(name)
            if shard is None or not self.is_whole(shard, tell=False):
                self.say(f"{name} is still to come from another rank")
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


def _name(part: Part, index: int) -> str:
    return shard_name(part.split, index)
