"""Sudoku (EBT, section 4.3): boards of one data set to learn from, harder ones with fewer givens to be tested on.

A batch is (givens, solutions), both (B, 81), int64: row by row, digits 1 to 9, and 0 for a blank among the givens.
Letters: B boards, N boards of a split.  Stored boards are (N, 2, 81), uint8: givens and solutions.
"""

import random
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paper_repro.base.errors import UsageError, one_of
from paper_repro.base.identity import mix
from paper_repro.datamodules.array_shards import DataFiles, hashes_of, kept
from paper_repro.datamodules.counter_based import CounterBasedDataModule, in_epochs
from paper_repro.datamodules.sudoku_boards import CELLS, SIDE, UNITS, check_givens, parse_board, puzzle

TRAIN, VAL, TEST = "train", "val", "test"
SATNET_GIVENS = (31, 42)
"""The fewest and the most givens (36.2 in the mean); RRN's boards have 17 to 34, as many boards of each number."""
BOARDS_SEED = 0
SATNET_BOARDS, SATNET_TRAIN = 10_000, 9_000
Boards = NDArray[np.uint8]


@dataclass(eq=False, repr=False, kw_only=True)
class SudokuData(CounterBasedDataModule):
    """A training batch follows from (``seed``, step) alone: which boards.

    Every training board is seen once an epoch, in an order of that epoch's; batches run on across epochs.  Evaluations
    see split "val", which is from the same data as training, its boards in order and unchanged.  The boards of "test"
    are harder; a probe asks them once, after training.

    Args:
        batch_size: B.
        evaluation_batch_size: None: ``batch_size``.
        seed: of the training batches.
    """

    splits = (VAL,)

    batch_size: int = 64
    evaluation_batch_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.check_numbers("batch_size", "seed", "evaluation_batch_size")
        self._boards: dict[str, Boards] = {}

    @abstractmethod
    def read(self, split: str) -> Boards:
        """Return givens and solutions of a split, (N, 2, 81)."""

    def boards(self, split: str) -> Boards:
        """Return givens and solutions of a split, (N, 2, 81); read on first use."""
        if split not in self._boards:
            self._boards[split] = self.read(one_of("split", split, (TRAIN, VAL, TEST)))
        return self._boards[split]

    def prepare_data(self) -> None:
        """Read or generate all boards."""
        for split in (TRAIN, VAL, TEST):
            self.boards(split)

    def train_batch(self, step: int) -> tuple[Tensor, Tensor]:
        boards = self.boards(TRAIN)
        rows = in_epochs(step, self.batch_size, len(boards), self.seed, "sudoku", "order")
        return _batch(boards[rows])

    def example_batch(self) -> tuple[Tensor, Tensor]:
        givens = torch.zeros(self.batch_size, CELLS, dtype=torch.int64)
        return givens, givens + 1

    def evaluation_batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        boards, size = self.boards(split), self.evaluation_batch_size or self.batch_size
        for first in range(0, len(boards), size):
            yield _batch(boards[first : first + size])

    def data_hashes(self) -> dict[str, str]:
        return hashes_of({split: [self.boards(split)] for split in (TRAIN, VAL, TEST)})


@dataclass(eq=False, repr=False)
class GeneratedSudoku(SudokuData):
    """Boards with one solution each, drawn at random; board i of a split follows from (split, i).

    The defaults have the sizes of the paper's data and SATNet's range of givens.  RRN's boards reach down to 17 givens,
    this generator to 23.

    Args:
        num_train, num_val: N.
        train_givens: the fewest and the most givens of a board in "train" and "val", uniform between them.
        test_givens: the same of "test", where each number has ``num_test_each`` boards.
        cache: folder that keeps them (about 2 ms for a board of 36 givens, 35 ms for one of 24), or None.

    The other arguments are those of ``SudokuData``.
    """

    num_train: int = 9_000
    num_val: int = 1_000
    num_test_each: int = 1_000
    train_givens: Sequence[int] = SATNET_GIVENS
    test_givens: Sequence[int] = (23, 34)
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_numbers("num_train", "num_val", "num_test_each")
        self.train_givens = _range("train_givens", self.train_givens)
        self.test_givens = _range("test_givens", self.test_givens)

    def read(self, split: str) -> Boards:
        low, high = self.test_givens if split == TEST else self.train_givens
        count = self.num_train if split == TRAIN else self.num_val
        if split == TEST:
            count = self.num_test_each * (high - low + 1)

        def generated() -> dict[str, Boards]:
            return {"boards": np.array([self._board(split, index) for index in range(count)], np.uint8)}

        return kept(self.cache, "sudoku", __name__, (split, count, low, high), generated)["boards"]

    def _board(self, split: str, index: int) -> tuple[Sequence[int], Sequence[int]]:
        seed = mix(BOARDS_SEED, "sudoku", split, index)
        if split == TEST:
            return puzzle(seed, self.test_givens[0] + index // self.num_test_each)
        return puzzle(seed, random.Random(mix(seed, "givens")).randint(*self.train_givens))


@dataclass(eq=False, repr=False)
class SATNetAndRRN(SudokuData):
    """The paper's boards: the first 9,000 of SATNet's to train on, its last 1,000 as "val", RRN's 18,000 as "test".

    Args:
        files: ``{features: PATH, labels: PATH, test: PATH}``, relative to ``data_root``, $PAPER_REPRO_DATA or the
            repository's data/: SATNet's tensors features.pt and labels.pt and the test.csv of RRN's sudoku-hard.
        data_root: the first folder in which they are looked for.
        prepare: a command that gets them, named where one is absent.

    The other arguments are those of ``SudokuData``.
    """

    files: Mapping[str, str]
    data_root: str | Path | None = None
    prepare: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.found = DataFiles(self.files, self.prepare, "features", "labels", "test")

    def read(self, split: str) -> Boards:
        if split == TEST:
            return read_rrn(self._path("test"))
        return self._satnet[:SATNET_TRAIN] if split == TRAIN else self._satnet[SATNET_TRAIN:]

    def data_hashes(self) -> dict[str, str]:
        return self.found.hashes(self.data_root)

    @cached_property
    def _satnet(self) -> Boards:
        return read_satnet(self._path("features"), self._path("labels"))

    def _path(self, role: str) -> Path:
        return self.found.path(role, self.data_root)


def _batch(boards: Boards) -> tuple[Tensor, Tensor]:
    pair = torch.from_numpy(boards.astype(np.int64))  # (B, 2, 81)
    return pair[:, 0], pair[:, 1]


def _range(name: str, ends: Sequence[int]) -> tuple[int, int]:
    if len(ends) != 2 or ends[0] > ends[1]:
        raise ValueError(f"{name} must be the fewest and the most givens, got {ends!r}")
    return check_givens(name, ends[0]), check_givens(name, ends[1])


# The files of their authors: SATNet's two tensors, and RRN's tables of text.


def read_satnet(features: Path, labels: Path) -> Boards:
    """Read SATNet's boards, (10000, 2, 81), from two tensors (10000, 9, 9, 9), one-hot over digits, zeros if blank."""
    return _checked(np.stack([_one_hot(features), _one_hot(labels)], axis=1), f"{features} and {labels}")


def read_rrn(path: Path) -> Boards:
    """Read RRN's boards, (N, 2, 81): lines "givens,solution" of 81 digits each, 0 for a blank; a first line
    "quizzes,solutions" is skipped.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").split()
    found = []
    for number, line in enumerate(lines, 1):
        fields = line.split(",")
        if number == 1 and fields[0].isalpha():
            continue
        if len(fields) != 2:
            raise UsageError(f"{path}: line {number} has {len(fields)} fields, expected givens and solution")
        found.append([parse_board(text, f"{path}, line {number}") for text in fields])
    if not found:
        raise UsageError(f"{path}: no boards, expected lines of givens and solution: give RRN's test.csv")
    return _checked(np.array(found, np.uint8), str(path))


def _one_hot(path: Path) -> Boards:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises errors of pickle, zipfile, OSError and its own
        raise UsageError(f"{path}: not a tensor that torch.load can read: give SATNet's file") from error
    wanted = (SATNET_BOARDS, SIDE, SIDE, SIDE)
    one_hot = getattr(found, "shape", None) == wanted and bool(((found == 0) | (found == 1)).all())
    if not one_hot or int(found.sum(-1).max()) > 1:
        raise UsageError(f"{path}: expected a tensor {wanted}, one-hot or zeros for each cell: give SATNet's file")
    digits = torch.where(found.sum(-1) > 0, found.argmax(-1) + 1, 0)  # (N, 9, 9)
    return digits.view(-1, CELLS).numpy().astype(np.uint8)


def _checked(boards: Boards, name: str) -> Boards:
    """Return the boards, (N, 2, 81), if every solution obeys the rules and keeps its givens."""
    givens, solutions = boards[:, 0], boards[:, 1]
    good = ((givens == 0) | (givens == solutions)).all(axis=1)
    for unit in UNITS:
        good &= (np.sort(solutions[:, unit], axis=1) == np.arange(1, SIDE + 1)).all(axis=1)
    if not good.all():
        raise UsageError(
            f"{name}: {int((~good).sum()):,} of {len(good):,} solutions break the rules or their givens, the first is "
            f"board {int((~good).argmax()) + 1}: get the files again"
        )
    return boards
