"""Sudoku (EBT, section 4.3): boards of one data set to learn from, harder ones with fewer givens to be tested on.

A batch is (givens, solutions), both (B, 81), int64: row by row, digits 1 to 9, and 0 for a blank among the givens.
Letters: B boards, N boards of a split.
"""

import hashlib
import random
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paper_repro.base.errors import UsageError, at_least, one_of
from paper_repro.base.files import absent, cached, find_data, sha256_of_file
from paper_repro.base.identity import mix, stamp
from paper_repro.datamodules.counter_based import CounterBasedDataModule, in_epochs
from paper_repro.datamodules.sudoku_boards import CELLS, SIDE, check_givens, puzzle
from paper_repro.datamodules.sudoku_files import Boards, read_rrn, read_satnet

TRAIN, VAL, TEST = "train", "val", "test"
SATNET_GIVENS, RRN_GIVENS = (31, 42), (17, 34)
"""The fewest and the most givens of both data sets (SATNet: 36.2 in the mean; RRN: as many boards of each number)."""
SATNET_TRAIN = 9_000


class SudokuData(CounterBasedDataModule):
    """A training batch follows from (``seed``, step) alone: which boards, and by which symmetries they are changed.

    Every training board is seen once an epoch, in an order of that epoch's; batches run on across epochs.  Evaluations
    see split "val", which is from the same data as training, its boards in order and unchanged.  The boards of "test"
    are harder; a probe asks them once, after training.

    Args:
        batch_size: B.
        augment: change each training board by a random symmetry of the rules, see ``symmetric``.  The paper trains on
            9,000 boards and sees them overfitted; it does not say that it augments.
        evaluation_batch_size: None: ``batch_size``.
        seed: of the training batches.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self, batch_size: int = 64, augment: bool = False, evaluation_batch_size: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.batch_size, self.augment = at_least("batch_size", batch_size), bool(augment)
        each = batch_size if evaluation_batch_size is None else evaluation_batch_size
        self.evaluation_batch_size = at_least("evaluation_batch_size", each)
        self.seed = at_least("seed", seed, 0)
        self._boards: dict[str, Boards] = {}

    @abstractmethod
    def read(self, split: str) -> Boards:
        """Return givens and solutions of a split, (N, 2, 81)."""

    def boards(self, split: str) -> Boards:
        """Return givens and solutions of a split, (N, 2, 81); read on first use."""
        if split not in self._boards:
            self._boards[split] = self.read(one_of("split", split, (TRAIN, VAL, TEST)))
        return self._boards[split]

    @property
    def splits(self) -> tuple[str, ...]:
        return (VAL,)

    def prepare_data(self) -> None:
        """Read or generate all boards; done on first use where nobody calls it."""
        for split in (TRAIN, VAL, TEST):
            self.boards(split)

    def train_batch(self, step: int) -> tuple[Tensor, Tensor]:
        boards = self.boards(TRAIN)
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        rows = in_epochs(places, len(boards), lambda epoch: mix(self.seed, "sudoku", "order", epoch))
        chosen = boards[rows]  # (B, 2, 81)
        if self.augment:
            chosen = symmetric(chosen, np.random.default_rng(mix(self.seed, "sudoku", "symmetry", step)))
        return _batch(chosen)

    def example_batch(self) -> tuple[Tensor, Tensor]:
        """Return boards of a training batch's shapes, without givens; nothing is read."""
        givens = torch.zeros(self.batch_size, CELLS, dtype=torch.int64)
        return givens, givens + 1

    def evaluation_batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        boards = self.boards(split)
        for first in range(0, len(boards), self.evaluation_batch_size):
            yield _batch(boards[first : first + self.evaluation_batch_size])

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the boards of each split."""
        return {split: hashlib.sha256(self.boards(split).tobytes()).hexdigest() for split in (TRAIN, VAL, TEST)}


class GeneratedSudoku(SudokuData):
    """Boards with one solution each, drawn at random; board i of a split follows from (``boards_seed``, split, i).

    The defaults have the sizes of the paper's data and SATNet's range of givens.  RRN's boards reach down to 17 givens,
    this generator to 23.

    Args:
        num_train, num_val: N.
        train_givens: the fewest and the most givens of a board in "train" and "val", uniform between them.
        test_givens: the same of "test", where each number has ``num_test_each`` boards.
        boards_seed: of the boards.
        cache: folder that keeps them (about 2 ms for a board of 36 givens, 35 ms for one of 24), or None.

    The other arguments are those of ``SudokuData``.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        num_train: int = 9_000,
        num_val: int = 1_000,
        num_test_each: int = 1_000,
        train_givens: Sequence[int] = SATNET_GIVENS,
        test_givens: Sequence[int] = (23, 34),
        boards_seed: int = 0,
        batch_size: int = 64,
        augment: bool = False,
        evaluation_batch_size: int | None = None,
        seed: int = 0,
        cache: str | Path | None = None,
    ) -> None:
        super().__init__(batch_size, augment, evaluation_batch_size, seed)
        self.counts = {TRAIN: at_least("num_train", num_train), VAL: at_least("num_val", num_val)}
        self.num_test_each = at_least("num_test_each", num_test_each)
        self.train_givens = _range("train_givens", train_givens)
        self.test_givens = _range("test_givens", test_givens)
        self.boards_seed = at_least("boards_seed", boards_seed, 0)
        self.cache = None if cache is None else Path(cache)

    def read(self, split: str) -> Boards:
        if self.cache is None:
            return self._generated(split)
        low, high = self.test_givens if split == TEST else self.train_givens
        key = (split, self.boards_seed, self._count(split), low, high)
        name = hashlib.sha256(repr(key).encode()).hexdigest()[:20]
        content = cached(self.cache / f"sudoku-{name}-{stamp(__name__)}.bin", lambda: self._generated(split).tobytes())
        return np.frombuffer(content, np.uint8).reshape(-1, 2, CELLS)

    def _count(self, split: str) -> int:
        low, high = self.test_givens
        return self.num_test_each * (high - low + 1) if split == TEST else self.counts[split]

    def _generated(self, split: str) -> Boards:
        return np.array([self._board(split, index) for index in range(self._count(split))], np.uint8)

    def _board(self, split: str, index: int) -> tuple[Sequence[int], Sequence[int]]:
        seed = mix(self.boards_seed, "sudoku", split, index)
        if split == TEST:
            return puzzle(seed, self.test_givens[0] + index // self.num_test_each)
        return puzzle(seed, random.Random(mix(seed, "givens")).randint(*self.train_givens))


class SATNetAndRRN(SudokuData):
    """The paper's boards: the first 9,000 of SATNet's to train on, its last 1,000 as "val", RRN's 18,000 as "test".

    Args:
        files: ``{features: PATH, labels: PATH, test: PATH}``, relative to ``data_root``, $PAPER_REPRO_DATA or the
            repository's data/: SATNet's two tensors and the test boards of RRN's sudoku-hard.
        data_root: the first folder in which they are looked for.
        prepare: the command that puts them there, named where one is absent or wrong.

    The other arguments are those of ``SudokuData``.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        batch_size: int = 64,
        augment: bool = False,
        evaluation_batch_size: int | None = None,
        seed: int = 0,
        data_root: str | Path | None = None,
        prepare: str = "python scripts/prepare_data.py sudoku --from DIR",
    ) -> None:
        super().__init__(batch_size, augment, evaluation_batch_size, seed)
        self.files = dict(files)
        if set(self.files) != {"features", "labels", "test"}:
            raise ValueError(f"files must name features, labels and test, got {', '.join(self.files) or 'none'}")
        self.data_root, self.prepare = data_root, prepare

    def read(self, split: str) -> Boards:
        if split == TEST:
            return read_rrn(self._path("test"))
        boards = self._satnet
        return boards[:SATNET_TRAIN] if split == TRAIN else boards[SATNET_TRAIN:]

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of each file."""
        return {name: sha256_of_file(self._path(name)) for name in self.files}

    @cached_property
    def _satnet(self) -> Boards:
        return read_satnet(self._path("features"), self._path("labels"))

    def _path(self, name: str) -> Path:
        path = find_data(self.files[name], self.data_root)
        if path is None or not path.is_file():
            raise UsageError(absent(self.files[name], self.data_root, self.prepare))
        return path


def symmetric(boards: Boards, draws: np.random.Generator) -> Boards:
    """Change each board by a random symmetry of the rules, givens and solution alike, (B, 2, 81).

    The symmetries: digits renamed, rows and columns exchanged within a band, bands exchanged, transposition.
    """
    count = len(boards)
    names = np.zeros((count, SIDE + 1), np.uint8)
    names[:, 1:] = draws.permuted(np.tile(np.arange(1, SIDE + 1, dtype=np.uint8), (count, 1)), axis=1)
    rows, columns = _line_order(count, draws), _line_order(count, draws)  # (B, 9)
    at = rows[:, :, None] * SIDE + columns[:, None, :]  # (B, 9, 9): which cell comes to stand there
    at = np.where(draws.random((count, 1, 1)) < 0.5, at, at.transpose(0, 2, 1)).reshape(count, 1, CELLS)
    moved = np.take_along_axis(boards, np.broadcast_to(at, boards.shape), axis=2)
    return np.take_along_axis(names, moved.reshape(count, -1).astype(np.int64), axis=1).reshape(boards.shape)


def _line_order(count: int, draws: np.random.Generator) -> NDArray[np.int64]:
    """Draw orders of nine lines that keep each band of three together, (count, 9)."""
    bands = draws.random((count, 3)).argsort(axis=1)  # (count, 3)
    within = draws.random((count, 3, 3)).argsort(axis=2)  # (count, 3, 3)
    return (3 * bands[:, :, None] + within).reshape(count, SIDE)


def _batch(boards: Boards) -> tuple[Tensor, Tensor]:
    pair = torch.from_numpy(boards.astype(np.int64))  # (B, 2, 81)
    return pair[:, 0], pair[:, 1]


def _range(name: str, ends: Sequence[int]) -> tuple[int, int]:
    if isinstance(ends, str) or len(ends) != 2:
        raise ValueError(f"{name} must be the fewest and the most givens, got {ends!r}")
    low, high = (check_givens(name, end) for end in ends)
    if low > high:
        raise ValueError(f"{name} must be the fewest and the most givens, got {list(ends)}")
    return low, high
