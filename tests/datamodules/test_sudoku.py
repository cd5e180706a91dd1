import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from paper_repro.datamodules import sudoku
from paper_repro.datamodules.sudoku import GeneratedSudoku, SATNetAndRRN, read_rrn, read_satnet
from paper_repro.datamodules.sudoku_boards import CELLS, UNITS, check_board, full_board, parse_board, puzzle, solutions
from paper_repro.metrics.sudoku import solved
from paper_repro.tests.support.prepared import said_of

SEVENTEEN = "000000010400000000020000000000050407008000300001090000300400200050100000000806000"
"""The fewest givens that a board with one solution can have."""
HARD = "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4.."
SMALL = {"num_train": 20, "num_val": 6, "num_test_each": 2, "train_givens": [50, 60], "test_givens": [40, 42]}


def small(**options):
    return GeneratedSudoku(**{**SMALL, "batch_size": 8, **options})


def text(board):
    return "".join(map(str, board))


def brute_force(board):
    """Every solution, by trying each digit in each blank, from the first on."""
    peers = [{other for unit in UNITS if cell in unit for other in unit} for cell in range(CELLS)]

    def fill(cells):
        if 0 not in cells:
            return [tuple(cells)]
        cell = cells.index(0)
        free = set(range(1, 10)) - {cells[other] for other in peers[cell]}
        return list(itertools.chain.from_iterable(fill([*cells[:cell], digit, *cells[cell + 1 :]]) for digit in free))

    return fill(list(board))


@pytest.mark.parametrize("board", [SEVENTEEN, HARD])
def test_the_solver_finds_the_one_solution_of_hard_boards(board):
    givens = parse_board(board)
    found = check_board(givens)
    assert solved(torch.tensor(givens), torch.tensor(found))


@pytest.mark.parametrize("seed", range(4))
def test_the_solver_counts_what_brute_force_counts(seed):
    draws = random.Random(seed)
    board = list(full_board(draws))
    for cell in draws.sample(range(CELLS), 44):
        board[cell] = 0
    expected = brute_force(board)
    assert sorted(solutions(board)) == sorted(expected) and expected


@pytest.mark.parametrize("givens", [70, 45, 30, 25])
def test_a_generated_board_has_the_givens_that_are_asked_for_and_one_solution(givens):
    for seed in range(3):
        board, solution = puzzle(seed, givens)
        assert sum(digit > 0 for digit in board) == givens
        assert list(solutions(board)) == [solution] and solved(torch.tensor(board), torch.tensor(solution))
    assert puzzle(0, givens) == puzzle(0, givens) != puzzle(1, givens)


def test_boards_follow_from_their_seed_and_index_alone():
    data, fewer = small(), small(num_train=10)
    assert (data.boards("train")[:10] == fewer.boards("train")).all()
    assert (data.boards("train")[:6] != data.boards("val")).any()
    counts = (data.boards("train")[:, 0] > 0).sum(1)
    assert counts.min() >= 50 and counts.max() <= 60 and len(set(counts)) > 3
    assert (data.boards("test")[:, 0] > 0).sum(1).tolist() == [40, 40, 41, 41, 42, 42]


def test_wrong_boards_are_refused_with_the_place_of_what_is_wrong():
    board = text(puzzle(0, 40)[0])
    assert "board: 80 characters, expected 81" in said_of(lambda: parse_board(board[:80]))
    assert "'x' at row 2, column 4" in said_of(lambda: parse_board(board[:12] + "x" + board[13:]))
    lines = "\n".join(board[row : row + 9] for row in range(0, 81, 9)).replace("0", ".")
    assert parse_board(lines) == parse_board(board)
    twice = [5 if cell in (60, 70) else 0 for cell in range(CELLS)]
    assert "box 9 has the digit 5 twice" in said_of(lambda: check_board(twice))
    unsolvable = "123456780" + "000000009" + "0" * 63
    assert "no digits fill its blanks by the rules" in said_of(lambda: check_board(parse_board(unsolvable)))
    assert "more than one solution" in said_of(lambda: check_board(parse_board("." + HARD[1:])))


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in the form of SATNet's and RRN's, of few boards."""
    monkeypatch.setattr(sudoku, "SATNET_BOARDS", 10)
    monkeypatch.setattr(sudoku, "SATNET_TRAIN", 9)
    boards = torch.tensor(np.array([puzzle(seed, 60) for seed in range(10)]))
    hot = torch.nn.functional.one_hot(boards, 10)[..., 1:].float().view(10, 2, 9, 9, 9)
    folder = tmp_path / "sudoku"
    folder.mkdir()
    torch.save(hot[:, 0].clone(), folder / "features.pt")
    torch.save(hot[:, 1].clone(), folder / "labels.pt")
    lines = [",".join(map(text, board)) for board in boards[:4].tolist()]
    (folder / "test.csv").write_text("\n".join(lines) + "\n")
    return folder


def paper_boards(folder: Path, **options):
    files = {"features": "sudoku/features.pt", "labels": "sudoku/labels.pt", "test": "sudoku/test.csv"}
    return SATNetAndRRN(files, batch_size=4, data_root=folder.parent, **options)


def test_the_files_of_both_data_sets_are_read(official):
    data = paper_boards(official)
    expected = np.array([puzzle(seed, 60) for seed in range(10)])
    assert (data.boards("train") == expected[:9]).all() and (data.boards("val") == expected[9:]).all()
    assert (data.boards("test") == expected[:4]).all()
    assert solved(*data.train_batch(3)).all() and set(data.data_hashes()) == {"features", "labels", "test"}
    test = official / "test.csv"
    test.write_text("quizzes,solutions\n" + test.read_text())
    assert (read_rrn(test) == expected[:4]).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda hot: hot[..., 0], "expected a tensor (10, 9, 9, 9)"),
        (torch.ones_like, "one-hot or zeros for each cell"),
        (lambda hot: torch.cat([hot[:6], hot[6:7].roll(1, dims=1), hot[7:]]), "1 of 10 solutions break the rules"),
        (None, "not a tensor"),
    ],
)
def test_other_tensors_are_refused(official, change, said):
    path = official / "labels.pt"
    path.write_bytes(b"nothing") if change is None else torch.save(change(torch.load(path)), path)
    assert said in said_of(lambda: read_satnet(official / "features.pt", path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("quizzes,solutions\n", "no boards, expected lines"),
        ("0" * 80 + "," + "1" * 81, "line 1: 80 characters, expected 81"),
        ("0" * 81 + "," + "1" * 81, "1 of 1 solutions break the rules"),
    ],
)
def test_other_tables_are_refused(tmp_path, content, said):
    path = tmp_path / "test.csv"
    path.write_text(content)
    assert said in said_of(lambda: read_rrn(path))
