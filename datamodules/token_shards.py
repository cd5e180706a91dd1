"""Token ids in shards of uint16, with a tokenizer beside them.

The shards of a split, put end to end, are one stream, in which every document is followed by the end of text.  Where
one shard ends and the next begins changes no window.  nanoGPT's ``train.bin`` and ``val.bin`` are such streams without
a manifest.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.array_shards import Array, Content, Manifest, Shard, StoredArrays, content_of, size_of
from paper_repro.datamodules.tokenizers import BytePairTokenizer

TOKENIZER = "tokenizer.json"
DTYPE = np.dtype("<u2")
MOST_IDS = 2**16
DOCUMENTS, TOKENS, BYTES = "documents", "tokens", "bytes"
"""The counts of a shard: the bytes are those of its documents in UTF-8."""
ARRAYS = {TOKENS: Array(DTYPE)}
VERSIONS = frozenset({"python", "packages"})
"""What older manifests say of the source of docstrings."""


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
        """Compare a file with what the manifest says, and its ids with the vocabulary.

        Raises:
            UsageError: the file is missing, truncated or altered, or holds an id that the vocabulary lacks.
        """
        found = super().check(folder, shard, stamps)
        _check_ids(folder / shard.file, found, self.vocabulary_size)
        return found

    def verify(self, folder: Path) -> None:
        """Read every shard again, and the tokenizer.

        Raises:
            UsageError: what is missing, truncated, altered or of another tokenizer.
        """
        self.tokenizer(folder)
        super().verify(folder)

    def tokenizer(self, folder: Path) -> BytePairTokenizer:
        """Return the tokenizer that the shards were made with.

        Raises:
            UsageError: it is absent, or another one lies there.
        """
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
    """Check a file of ids that no manifest describes.

    Raises:
        UsageError: it is missing or empty, ends in half an id, or holds an id that the vocabulary lacks.
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
    """The shards of one split, end to end.

    Args:
        paths: the shards, in order.
    """

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
