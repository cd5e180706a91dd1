"""Language modelling on a stream of tokens: characters of one text, or token shards (NRGPT, sections 3.3 and 3.4).

Letters: B windows of a batch, T tokens of a window.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, one_of
from paper_repro.base.files import sha256_of_bytes
from paper_repro.datamodules.array_shards import DataFiles
from paper_repro.datamodules.counter_based import CounterBasedDataModule, generator_of, in_epochs
from paper_repro.datamodules.token_shards import TokenManifest, TokenStream
from paper_repro.datamodules.tokenizers import BytePairTokenizer, CharacterTokenizer, Tokenizer

TRAIN, VAL, TEST = "train", "val", "test"
TRAIN_SHARE = 0.9
Pair = tuple[Tensor, Tensor]
Stream = TokenStream | npt.NDArray[Any]
"""Token ids of one split, end to end."""


class WindowData(CounterBasedDataModule):
    """Random windows of a stream of tokens for each split: a batch is (ids (B, T), next ids (B, T)), int64."""

    stream_name: ClassVar[str]
    """The name of the stream of random numbers that place the windows."""
    batch_size: int
    window: int
    num_evaluation_batches: int | None
    seed: int
    evaluation_seed: int

    @abstractmethod
    def open(self) -> Mapping[str, Stream]:
        """Return the stream of each split, checked; UsageError if a file is absent or not what it must be."""

    @cached_property
    def streams(self) -> Mapping[str, Stream]:
        """The stream of each split, which holds a window at least."""
        streams = self.open()
        for split, stream in streams.items():
            if len(stream) <= self.window:
                raise UsageError(
                    f"split {split!r} has {len(stream):,} tokens, a window of {self.window} needs more: "
                    "give a smaller window or more data"
                )
        return streams

    def prepare_data(self) -> None:
        """Open and check the streams."""
        _ = self.streams

    def train_batch(self, step: int) -> Pair:
        return self._windows(TRAIN, self.seed, "batch", step)

    def example_batch(self) -> Pair:
        ids = torch.zeros(self.batch_size, self.window, dtype=torch.int64)
        return ids, ids

    def evaluation_batches(self, split: str) -> Iterator[Pair]:
        one_of("split", split, self.splits)
        for index in range(self.num_evaluation_batches or 0):
            yield self._windows(split, self.evaluation_seed, "evaluation", split, index)

    def _windows(self, split: str, seed: int, *stream: int | str) -> Pair:
        generator = generator_of(seed, self.stream_name, *stream)
        last = len(self.streams[split]) - self.window
        return self.rows(split, torch.randint(last, (self.batch_size,), generator=generator))

    def rows(self, split: str, starts: Tensor) -> Pair:
        """Return the windows of a split that begin at some places, (B,)."""
        stream, length = self.streams[split], self.window + 1
        rows = np.stack([stream[start : start + length] for start in starts.tolist()]).astype(np.int64)
        return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])


@dataclass(eq=False, repr=False)
class TextData(WindowData):
    """Files of text or token ids, found and checked; windows of their streams, or all of a split.

    What a subclass draws for training step t follows from (``seed``, t) alone, what it evaluates from
    ``evaluation_seed`` alone: every model and every seed is judged on the same.

    Args:
        files: the files that are read, by role; relative to ``data_root``, $PAPER_REPRO_DATA or the repository's data/.
        batch_size: B.
        window: T.
        num_evaluation_batches: batches of a split that is evaluated.  None: the whole split, and of train a tenth as
            much as of val.
        seed: of the training batches.
        evaluation_seed: of what is evaluated.
        vocabulary_size: V of the model; ids at or above it are refused.  None: no model is known.
        tokens: how many characters a text must have, so that a truncated one is refused.  None: any number.
        test: whether there is a third split, ``test``, that is evaluated, too.
        data_root: the first folder in which the files are looked for.
        cache: folder that remembers which shards were checked; None: they are checked once a process.
        prepare: the command that makes the files, named where they are absent or wrong.
    """

    stream_name = "text"
    role: ClassVar[str]
    """The role of the one file in ``files``."""

    files: Mapping[str, str]
    batch_size: int = 64
    window: int = 256
    num_evaluation_batches: int | None = 200
    seed: int = 0
    evaluation_seed: int = 0
    vocabulary_size: int | None = None
    tokens: int | None = None
    data_root: str | Path | None = None
    cache: str | Path | None = None
    prepare: str = ""
    test: bool = False

    def __post_init__(self) -> None:
        limits = ("num_evaluation_batches", "vocabulary_size", "tokens")
        self.check_numbers("batch_size", "window", "seed", "evaluation_seed", *limits)
        self.found = DataFiles(self.files, self.prepare, self.role)

    @property
    def splits(self) -> tuple[str, ...]:
        return (TRAIN, VAL, TEST) if self.test else (TRAIN, VAL)

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """What turns the text into ids and back."""

    def evaluation_batches(self, split: str) -> Iterator[Pair]:
        if self.num_evaluation_batches is not None:
            yield from super().evaluation_batches(split)
            return
        starts = torch.arange(self._whole_windows(one_of("split", split, self.splits))) * self.window
        yield from (self.rows(split, chosen) for chosen in starts.split(self.batch_size))

    def _whole_windows(self, split: str) -> int:
        """Return the number of windows that an evaluation of a whole split takes, one after the other."""
        count = (len(self.streams[split]) - 1) // self.window
        return min(count, max(1, self._whole_windows(VAL) // 10)) if split == TRAIN else count

    def _find(self) -> Path:
        return self.found.path(self.role, self.data_root)

    def _check_vocabulary(self, found: int) -> None:
        if self.vocabulary_size is not None and found > self.vocabulary_size:
            raise UsageError(
                f"the data have {found} token ids, the model's vocabulary_size is {self.vocabulary_size}: "
                f"give it at least {found}"
            )


def read_text(path: Path, characters: int | None = None) -> str:
    """Return the text of a UTF-8 file, its line ends as they are; UsageError: it is empty, not UTF-8, or of another
    length than ``characters``.
    """
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 ({error}): convert it") from error
    if not text:
        raise UsageError(f"{path}: the file is empty; expected a text")
    if characters is not None and len(text) != characters:
        how = "truncated" if len(text) < characters else "longer, or its line ends were changed"
        raise UsageError(f"{path}: {len(text):,} characters, expected {characters:,}: it is {how}")
    return text


class CharacterData(TextData):
    """The characters of one text: the first nine tenths train, the rest is validation (NRGPT, F.4, tiny Shakespeare).

    ``files`` is ``{text: PATH}``; the other arguments are those of ``TextData``.  With ``test`` the second half of the
    rest is the test split, so that what is chosen on validation is reported on other text.
    """

    role = "text"

    @cached_property
    def text(self) -> str:
        """The whole text."""
        path = self._find()
        with self.found.mended():
            return read_text(path, self.tokens)

    @cached_property
    def tokenizer(self) -> CharacterTokenizer:
        """One id for each character that the whole text has, in order."""
        return CharacterTokenizer(self.text)

    def open(self) -> Mapping[str, Stream]:
        self._check_vocabulary(self.tokenizer.vocabulary_size)
        ids = np.array(self.tokenizer.encode(self.text), np.uint16)
        border = int(TRAIN_SHARE * len(ids))
        middle = (border + len(ids)) // 2 if self.test else len(ids)
        parts = {TRAIN: ids[:border], VAL: ids[border:middle], TEST: ids[middle:]}
        return {split: parts[split] for split in self.splits}

    def data_hashes(self) -> dict[str, str]:
        return {"text": sha256_of_bytes(self.text.encode()), "tokenizer": self.tokenizer.fingerprint}


@dataclass(eq=False, repr=False)
class ShardData(TextData):
    """Token shards that ``scripts/prepare_data.py`` wrote.

    ``files`` is ``{manifest: PATH}``; the other arguments are those of ``TextData``.  What a batch holds may span two
    shards, so neither their size nor their number changes it.
    """

    role = "manifest"

    least_tokens: int = 0
    """Fewer tokens in all splits together are refused, because a paper's corpus has more."""

    @cached_property
    def manifest(self) -> TokenManifest:
        """What was prepared."""
        return TokenManifest.read(self._find())

    @cached_property
    def tokenizer(self) -> BytePairTokenizer:
        """The one the shards were made with, which lies beside them."""
        with self.found.mended():
            return self.manifest.tokenizer(self._find().parent)

    @property
    def end_of_text(self) -> int:
        """The id that follows each document."""
        return self.manifest.end_of_text

    def open(self) -> Mapping[str, TokenStream]:
        self._check_vocabulary(self.manifest.vocabulary_size)
        stamps = None if self.cache is None else Path(self.cache, "shards")
        with self.found.mended():
            streams = {split: TokenStream(self.manifest, self._find(), split, stamps) for split in self.splits}
            found = sum(map(len, streams.values()))
            if found < self.least_tokens:
                raise UsageError(
                    f"{', '.join(self.files.values())}: {found:,} tokens, the paper's corpus has {self.least_tokens:,} "
                    f"or more: prepare all of it ({self.prepare}), or give data.least_tokens=0 for a part"
                )
        return streams

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the manifest, which holds those of the shards, and of its tokenizer."""
        self.prepare_data()
        return {**self.found.hashes(self.data_root), "tokenizer": self.manifest.fingerprint}


@dataclass(eq=False, repr=False)
class TokenData(ShardData):
    """Windows of token shards, drawn uniformly over a split's whole stream (NRGPT, F.5, OpenWebText)."""

    chunks: bool = False
    """Whether training reads the chunks into which the stream is divided, each once an epoch in an order that follows
    from ``seed`` (CEM, D.2), and draws no windows."""

    def train_batch(self, step: int) -> Pair:
        if not self.chunks:
            return super().train_batch(step)
        count = (len(self.streams[TRAIN]) - 1) // self.window
        chosen = in_epochs(step, self.batch_size, count, self.seed, "text", "epoch")
        return self.rows(TRAIN, torch.tensor(chosen) * self.window)


class SlimPajamaData(TokenData):
    """SlimPajama's token shards (CEM, D.2) with a third split, ``test``, that of the paper's perplexities."""

    splits = (TRAIN, VAL, TEST)


class BookData(TokenData):
    """PG19's test books' token shards: a ``TokenData`` of one split, ``test``."""

    splits = (TEST,)
