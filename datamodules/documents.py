"""Language modelling on documents, one a sample, cut and padded (EBT, appendix C and the authors' data module).

Letters: B documents of a batch, T tokens of a window.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, one_of
from paper_repro.base.identity import IGNORED, mix
from paper_repro.datamodules.array_shards import kept, stamp_of
from paper_repro.datamodules.counter_based import in_epochs, permutation
from paper_repro.datamodules.text import TRAIN, VAL, Pair, ShardData
from paper_repro.datamodules.token_shards import TokenStream

Ids = Sequence[int] | npt.NDArray[np.uint16]
LENGTHS_DTYPE = np.dtype("<u4")
CHUNK = 2**22
LEAST_TOKENS = 2
"""A shorter document has nothing to predict."""


def padded(documents: Sequence[Ids], window: int, pad: int) -> tuple[Tensor, Tensor]:
    """Return documents as a batch, ids and next ids, (B, T) each, int64, each cut at ``window`` + 1 tokens and filled
    up on the right with the id ``pad``, whose places have the target ``IGNORED``.
    """
    rows = np.full((len(documents), window + 1), pad, np.int64)
    following = np.full((len(documents), window), IGNORED, np.int64)
    for row, targets, document in zip(rows, following, documents, strict=True):
        ids = document[: window + 1]
        row[: len(ids)] = ids
        targets[: max(len(ids) - 1, 0)] = ids[1:]
    return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(following)


def document_lengths(stream: TokenStream, end_of_text: int) -> npt.NDArray[np.int64]:
    """Return how many tokens each document of a stream has, without the end of text that follows it; UsageError if the
    stream does not end with an end of text.
    """
    pieces = []
    for start in range(0, len(stream), CHUNK):
        pieces.append(start + np.flatnonzero(stream[start : start + CHUNK] == end_of_text))
    ends = np.concatenate(pieces)
    if not len(ends) or ends[-1] != len(stream) - 1:
        where = stream.paths[-1]
        raise UsageError(f"{where}: expected documents, each followed by the end of text (id {end_of_text})")
    return np.diff(ends, prepend=-1) - 1


class DocumentStream:
    """The documents of one split that have at least two tokens, in order; ``lengths`` are without the end of text."""

    def __init__(self, stream: TokenStream, lengths: npt.NDArray[np.int64]) -> None:
        starts = np.cumsum(lengths + 1) - lengths - 1
        kept = lengths >= LEAST_TOKENS
        self.stream, self.starts, self.lengths = stream, starts[kept], lengths[kept].astype(LENGTHS_DTYPE)

    def __len__(self) -> int:
        return len(self.starts)

    def ids(self, index: int, most: int) -> npt.NDArray[np.uint16]:
        """Return the first ``most`` ids of a document."""
        first = int(self.starts[index])
        return self.stream[first : first + min(most, int(self.lengths[index]))]


class DocumentData(ShardData):
    """Documents of token shards: a batch is B documents, each cut at T + 1 tokens and padded with the end of text.

    A batch is (ids (B, T), next ids (B, T)), int64.  A next id that is padding is ``IGNORED``; so is the end of text
    itself, as in EBT's code, which pads with id 0, GPT-NeoX's end of text, and counts no target of that id.

    Training reads all documents in a new order each epoch; batch t holds the documents t B to (t + 1) B - 1 of that
    endless sequence, which follows from ``seed``. Each split is evaluated on the first ``num_evaluation_batches`` B
    documents of an order that follows from ``evaluation_seed``, or on all if there are fewer or the number is None (of
    train then on a tenth as many as of val). Documents of fewer than two tokens are left out.

    The arguments are those of ``TextData``; ``cache`` also keeps where documents end.
    """

    @cached_property
    def documents(self) -> Mapping[str, DocumentStream]:
        """The documents of each split; UsageError if there are none."""
        with self.found.mended():
            return {split: self._documents(split, stream) for split, stream in self.open().items()}

    def prepare_data(self) -> None:
        """Check the files and find their documents."""
        _ = self.documents

    def train_batch(self, step: int) -> Pair:
        documents = self.documents[TRAIN]
        count = len(documents)
        chosen = in_epochs(step, self.batch_size, count, self.seed, "documents", "epoch")
        return self._batch(documents, chosen)

    def evaluation_batches(self, split: str) -> Iterator[Pair]:
        one_of("split", split, self.splits)
        documents = self.documents[split]
        order = permutation(len(documents), mix(self.evaluation_seed, "documents", "evaluation", split))
        count = len(documents)
        if self.num_evaluation_batches is not None:
            count = self.num_evaluation_batches * self.batch_size
        elif split == TRAIN:
            count = max(1, len(self.documents[VAL]) // 10)
        for chosen in order[:count].split(self.batch_size):
            yield self._batch(documents, chosen.tolist())

    def _documents(self, split: str, stream: TokenStream) -> DocumentStream:
        """Return a split's documents; their lengths are kept under the stamps of its shards where there is a cache."""
        key = (self.end_of_text, [stamp_of(path) for path in stream.paths])

        def found() -> dict[str, npt.NDArray[np.uint32]]:
            return {"lengths": document_lengths(stream, self.end_of_text).astype(LENGTHS_DTYPE)}

        lengths = kept(self.cache, "documents/lengths", __name__, key, found)["lengths"].astype(np.int64)
        documents = DocumentStream(stream, lengths)
        if not len(documents):
            raise UsageError(f"split {split!r} has no document of {LEAST_TOKENS} tokens or more: give more data")
        return documents

    def _batch(self, documents: DocumentStream, chosen: Sequence[int]) -> Pair:
        ids = [documents.ids(index, self.window + 1) for index in chosen]
        return padded(ids, self.window, self.end_of_text)
