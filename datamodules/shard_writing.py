"""Documents to token shards, shard by shard, so that a preparation that was killed goes on where it was."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paper_repro.base.arguments import at_least
from paper_repro.base.errors import UsageError
from paper_repro.base.files import PART_SUFFIX, locked, sha256_of_bytes, write_atomically
from paper_repro.datamodules.token_shards import DTYPE, MANIFEST, MOST_IDS, TOKENIZER, Manifest, Shard, check_shard
from paper_repro.datamodules.tokenizers import END_TOKENS, BytePairTokenizer

PROGRESS = "progress.json"
LOCK = ".lock"
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
) -> Manifest:
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
    with told_of_the_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK):
            return _Writing(folder, settings, tokenizer, say).run(splits)


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


@contextlib.contextmanager
def told_of_the_disk(folder: Path) -> Iterator[None]:
    """Turn what the operating system refuses into a UsageError that says how to go on."""
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        raise UsageError(
            f"{place}: could not be written ({error.strerror}); what is finished stays: make room, or mend the "
            "folder, and give the same command again"
        ) from error


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


class ShardFolder:
    """What every preparation does in its folder: settings compared, shards encoded, checked and noted.

    Args:
        folder: that of the shards.
        settings: all that their content depends on.
        tokenizer: that of the settings.
        say: is told of damaged shards.
    """

    def __init__(
        self, folder: Path, settings: dict[str, Any], tokenizer: BytePairTokenizer, say: Callable[[str], None] = print
    ) -> None:
        self.folder, self.settings, self.tokenizer, self.say = folder, settings, tokenizer, say
        self.end = settings["tokenizer"]["end_of_text"]

    def compare(self, earlier: Mapping[str, Any]) -> None:
        """Compare the settings of an earlier call.

        Raises:
            UsageError: they are others.
        """
        found, wanted = _flat(earlier), _flat(self.settings)
        for key in sorted({*found, *wanted}):
            if found.get(key) != wanted.get(key):
                raise UsageError(
                    f"{self.folder} was prepared with {key} {found.get(key)}, asked for is {wanted.get(key)}: "
                    "remove the folder, or prepare into another with --to"
                )

    def is_whole(self, shard: Shard, tell: bool = True) -> bool:
        """Return whether the file is what was noted; with ``tell``, log where it is not."""
        try:
            check_shard(self.folder / shard.file, shard.tokens, shard.sha256, self.tokenizer.vocabulary_size, None)
        except UsageError as error:
            if tell:
                self.say(f"{error}; it is made again")
            return False
        return True

    def write(self, name: str, split: str, texts: Iterable[Sequence[str]], most_tokens: float) -> Shard:
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
        return Shard(name, split, documents, len(whole) // DTYPE.itemsize, size, sha256_of_bytes(whole))

    def note(self, name: str, shards: Iterable[Shard]) -> Manifest:
        """Write the settings and what is finished into the file ``name``."""
        manifest = Manifest(self.settings, tuple(shards))
        self.put(name, manifest.to_bytes())
        return manifest

    def put(self, name: str, content: bytes) -> None:
        """Write a file whole, and remove what a call that was killed left of it."""
        for part in self.folder.glob(f".{name}.*{PART_SUFFIX}"):
            part.unlink()
        write_atomically(self.folder / name, content)


class _Writing(ShardFolder):
    def run(self, splits: Mapping[str, Documents]) -> Manifest:
        known = {shard.file: shard for shard in self._known()}
        self.put(TOKENIZER, self.tokenizer.to_bytes())
        shards: list[Shard] = []
        for split, documents in splits.items():
            first = index = 0
            while first < len(documents):
                name = f"{split}-{index:05d}.bin"
                shard = known.get(name)
                if shard is None or not self.is_whole(shard):
                    shard = self.write(name, split, _slices(documents, first), self.settings["shard_tokens"])
                    self.say(f"{name}: documents {first:,} to {first + shard.documents:,} of {len(documents):,}")
                shards.append(shard)
                known[name] = shard
                self.note(PROGRESS, known.values())
                first, index = first + shard.documents, index + 1
        manifest = self.note(MANIFEST, shards)
        (self.folder / PROGRESS).unlink()
        return manifest

    def _known(self) -> Sequence[Shard]:
        """Return the shards that an earlier call finished, if it had the same settings."""
        path = next((path for name in (PROGRESS, MANIFEST) if (path := self.folder / name).is_file()), None)
        if path is None:
            return ()
        earlier = Manifest.read(path)
        self.compare(earlier.settings)
        return earlier.shards


def _slices(documents: Documents, first: int) -> Iterator[Sequence[str]]:
    for start in range(first, len(documents), DOCUMENTS_AT_ONCE):
        yield documents[start : start + DOCUMENTS_AT_ONCE]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": json.dumps(value)}
    return found


def verify(path: Path) -> Manifest:
    """Read every shard that a manifest names, again, and its tokenizer.

    Raises:
        UsageError: what is missing, truncated, altered or of another tokenizer.
    """
    manifest = Manifest.read(path)
    tokenizer = BytePairTokenizer.load(path.parent / manifest.settings["tokenizer"]["file"])
    if tokenizer.fingerprint != manifest.fingerprint:
        raise UsageError(f"{path.parent / TOKENIZER}: another tokenizer than the shards were made with")
    for shard in manifest.shards:
        check_shard(path.parent / shard.file, shard.tokens, shard.sha256, manifest.vocabulary_size, None)
    return manifest
