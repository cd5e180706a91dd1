"""Sudoku boards in the files of their authors: SATNet's two tensors, and RRN's tables of text.

N is the number of boards of a file; boards are (N, 2, 81), uint8: givens with 0 for a blank, and solutions.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.preparation import put
from paper_repro.datamodules.sudoku_boards import CELLS, SIDE, UNITS, parse_board

Boards = NDArray[np.uint8]
FOLDER = "sudoku"
FEATURES, LABELS, TEST = "features.pt", "labels.pt", "test.csv"
"""SATNet's boards and their solutions, RRN's test boards (sudoku-hard)."""
SATNET_BOARDS = 10_000


def read_satnet(features: Path, labels: Path) -> Boards:
    """Read SATNet's boards, (10000, 2, 81): two tensors (10000, 9, 9, 9), one-hot over digits, zeros where blank.

    Raises:
        UsageError: a file that is no such tensor, or boards that are not solved as their givens demand.
    """
    givens, solutions = _one_hot(features), _one_hot(labels)
    return _checked(np.stack([givens, solutions], axis=1), f"{features} and {labels}")


def read_rrn(path: Path) -> Boards:
    """Read RRN's boards, (N, 2, 81): lines "givens,solution" of 81 digits each, 0 for a blank.

    A first line "quizzes,solutions" is skipped.

    Raises:
        UsageError: no file, no line, a line of another form, or boards that are not solved as their givens demand.
    """
    try:
        with path.open(newline="", encoding="ascii") as stream:
            lines = [line for line in csv.reader(stream) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not a table of boards ({error}): give RRN's test.csv") from error
    first = 1 if lines and lines[0][0].isalpha() else 0
    if len(lines) == first:
        raise UsageError(f"{path}: no boards, expected lines of givens and solution: give RRN's test.csv")
    found = []
    for number, line in enumerate(lines[first:], first + 1):
        if len(line) != 2:
            raise UsageError(f"{path}: line {number} has {len(line)} fields, expected givens and solution")
        found.append([parse_board(text, f"{path}, line {number}") for text in line])
    return _checked(np.array(found, np.uint8), str(path))


def check(folder: Path) -> Mapping[str, Boards]:
    """Read SATNet's and RRN's files in a folder and check every solution.

    Raises:
        UsageError: a file is absent or not what it must be.
    """
    for name in (FEATURES, LABELS, TEST):
        if not (folder / name).is_file():
            raise UsageError(f"{folder / name} is not there: give --from DIR, a folder that has it")
    satnet = read_satnet(folder / FEATURES, folder / LABELS)
    return {"SATNet": satnet, "RRN": read_rrn(folder / TEST)}


def install(source: Path, folder: Path) -> Mapping[str, Boards]:
    """Look for the three files in ``source`` and the folders below it, check them, and copy them to ``folder``.

    Raises:
        UsageError: one is absent, there several times, not what it must be, or cannot be written.
    """
    found = {name: _only(source, name) for name in (FEATURES, LABELS, TEST)}
    satnet, rrn = read_satnet(found[FEATURES], found[LABELS]), read_rrn(found[TEST])
    for name, path in found.items():
        if path.resolve() != (folder / name).resolve():
            put(folder / name, path.read_bytes())
    return {"SATNet": satnet, "RRN": rrn}


def _only(source: Path, name: str) -> Path:
    paths = sorted(path for path in source.rglob(name) if path.is_file())
    if len(paths) != 1:
        listed = f"{len(paths)} times ({', '.join(map(str, paths))})" if paths else "nowhere"
        raise UsageError(f"{source}: {name} is there {listed}, expected once: unpack SATNet's and RRN's files there")
    return paths[0]


def _one_hot(path: Path) -> Boards:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises errors of pickle, zipfile, OSError and its own
        raise UsageError(f"{path}: not a tensor that torch.load can read: give SATNet's file") from error
    wanted = (SATNET_BOARDS, SIDE, SIDE, SIDE)
    if not isinstance(found, Tensor) or found.shape != wanted:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UsageError(f"{path}: {shape}, expected a tensor {wanted}: give SATNet's file")
    if not bool(((found == 0) | (found == 1)).all()) or int(found.sum(-1).max()) > 1:
        raise UsageError(f"{path}: cells that are not one-hot, expected a single 1 or zeros: give SATNet's file")
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
