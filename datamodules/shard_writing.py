"""Documents to token shards, shard by shard, so that a preparation that was killed goes on where it was."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import sha256_of_bytes
from paper_repro.datamodules.array_shards import Shard
from paper_repro.datamodules.array_writing import ShardFolder, held
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
