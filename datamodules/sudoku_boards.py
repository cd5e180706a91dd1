"""Sudoku boards of 9 x 9: a solver that counts solutions, a generator of boards with one solution, a reader of text.

A board is a tuple of 81 digits, row by row; 0 is a blank.  A set of digits is a mask of nine bits, bit d - 1 for
digit d.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from paper_repro.base.errors import UsageError, at_least

Board = tuple[int, ...]
SIDE, CELLS = 9, 81
EVERY = (1 << SIDE) - 1
FEWEST_GIVENS = 23
"""What the generator reaches: after removing cells as long as the solution stays unique, about 24 are left.  The fewest
that any board with one solution has are 17."""

ROWS = [cell // SIDE for cell in range(CELLS)]
COLUMNS = [cell % SIDE for cell in range(CELLS)]
BOXES = [cell // 27 * 3 + cell % SIDE // 3 for cell in range(CELLS)]
UNITS = [[cell for cell in range(CELLS) if of[cell] == unit] for of in (ROWS, COLUMNS, BOXES) for unit in range(SIDE)]
_NAMES = [f"{name} {number}" for name in ("row", "column", "box") for number in range(1, SIDE + 1)]
_UNITS_OF = [[unit for unit in UNITS if cell in unit] for cell in range(CELLS)]
_DIGITS = [[digit for digit in range(1, SIDE + 1) if mask >> (digit - 1) & 1] for mask in range(EVERY + 1)]
_COUNT = [len(digits) for digits in _DIGITS]


class _State:
    """A board that is being filled, with the digits that each row, column and box has already."""

    def __init__(self, board: Sequence[int]) -> None:
        self.cells = [0] * CELLS
        self.rows, self.columns, self.boxes = [0] * SIDE, [0] * SIDE, [0] * SIDE
        for cell, digit in enumerate(board):
            if digit:
                self.flip(cell, digit)

    def flip(self, cell: int, digit: int) -> None:
        """Put a digit into a blank cell, or take it out again."""
        self.cells[cell] = 0 if self.cells[cell] else digit
        bit = 1 << (digit - 1)
        self.rows[ROWS[cell]] ^= bit
        self.columns[COLUMNS[cell]] ^= bit
        self.boxes[BOXES[cell]] ^= bit

    def free(self, cell: int) -> int:
        """Return the mask of the digits that neither row, column nor box of the cell has."""
        return EVERY & ~(self.rows[ROWS[cell]] | self.columns[COLUMNS[cell]] | self.boxes[BOXES[cell]])

    def choose(self) -> tuple[int, int] | None:
        """Return the blank with the fewest digits to try, and their mask; None where no cell is blank.

        A digit that has one place left in a row, column or box is the only one to try there.  An empty mask says that
        there is no solution.
        """
        options = [0 if digit else self.free(cell) for cell, digit in enumerate(self.cells)]
        best, fewest = -1, SIDE + 1
        for cell, mask in enumerate(options):
            if not self.cells[cell] and _COUNT[mask] < fewest:
                best, fewest = cell, _COUNT[mask]
                if fewest < 2:
                    return best, mask
        return None if best < 0 else _only_place(options) or (best, options[best])

    def forced(self, cell: int, digit: int) -> bool:
        """Return whether a blank can hold nothing but the digit, or a unit of the cell has no other place for it."""
        bit = 1 << (digit - 1)
        if self.free(cell) == bit:
            return True
        return any(
            not any(other != cell and not self.cells[other] and self.free(other) & bit for other in unit)
            for unit in _UNITS_OF[cell]
        )


def _only_place(options: Sequence[int]) -> tuple[int, int] | None:
    """Return a cell and the mask of the one digit that has no other place in a row, column or box; None without one."""
    for unit in UNITS:
        once = twice = 0
        for cell in unit:
            twice |= once & options[cell]
            once |= options[cell]
        if single := once & ~twice:
            bit = single & -single
            return next(cell for cell in unit if options[cell] & bit), bit
    return None


def solutions(board: Sequence[int], draws: random.Random | None = None) -> Iterator[Board]:
    """Yield every solution of a board whose givens agree, by search with the fewest choices first; digits are tried in
    ascending order, or in one that ``draws`` gives.
    """
    yield from _search(_State(board), draws)


def _search(state: _State, draws: random.Random | None) -> Iterator[Board]:
    chosen = state.choose()
    if chosen is None:
        yield tuple(state.cells)
        return
    cell, mask = chosen
    digits = list(_DIGITS[mask])
    if draws is not None and len(digits) > 1:
        draws.shuffle(digits)
    for digit in digits:
        state.flip(cell, digit)
        yield from _search(state, draws)
        state.flip(cell, digit)


def propagated(board: Sequence[int]) -> Board:
    """Fill every blank that has one digit left, until none has: what rules alone give without a search or a guess."""
    state = _State(board)
    while True:
        found = [cell for cell in range(CELLS) if not state.cells[cell] and _COUNT[state.free(cell)] == 1]
        if not found:
            return tuple(state.cells)
        state.flip(found[0], _DIGITS[state.free(found[0])][0])


def full_board(draws: random.Random) -> Board:
    """Draw a filled board: three random boxes on the diagonal, the rest by search with random digits.

    Not every filled board is equally likely.
    """
    start = [0] * CELLS
    for box in (0, 4, 8):
        for cell, digit in zip(UNITS[2 * SIDE + box], draws.sample(range(1, SIDE + 1), SIDE), strict=True):
            start[cell] = digit
    return next(solutions(start, draws))


def puzzle(seed: int, givens: int) -> tuple[Board, Board]:
    """Draw a board with exactly ``givens`` digits and one solution, and that solution: a function of the arguments.

    Cells of a random filled board are blanked in random order, each if the solution stays the only one; a board on
    which too many cells have to stay is drawn again.  ValueError: fewer givens than the generator reaches.
    """
    check_givens("givens", givens)
    draws = random.Random(seed)
    while True:
        solution = full_board(draws)
        board = _blanked(solution, givens, draws)
        if board is not None:
            return board, solution


def check_givens(name: str, givens: int) -> int:
    """Return a number of givens that the generator reaches; raise ValueError for any other."""
    at_least(name, givens, FEWEST_GIVENS)
    if givens > CELLS:
        raise ValueError(f"{name} must be a whole number up to {CELLS}, got {givens}")
    return givens


def _blanked(solution: Board, givens: int, draws: random.Random) -> Board | None:
    state = _State(solution)
    left = CELLS
    for cell in draws.sample(range(CELLS), CELLS):
        if left == givens:
            break
        digit = state.cells[cell]
        state.flip(cell, digit)
        if state.forced(cell, digit) or not _other_solution(state, cell, digit):
            left -= 1
        else:
            state.flip(cell, digit)
    return tuple(state.cells) if left == givens else None


def _other_solution(state: _State, cell: int, digit: int) -> bool:
    """Return whether the blank ``cell`` has another digit than ``digit`` in some solution."""
    others = (other for other in _DIGITS[state.free(cell)] if other != digit)
    boards = ([*state.cells[:cell], other, *state.cells[cell + 1 :]] for other in others)
    return any(next(solutions(board), None) is not None for board in boards)


BLANKS = "0.*_"


def parse_board(text: str, name: str = "board") -> Board:
    """Read 81 characters, row by row: 1 to 9, and 0 . * or _ for a blank; white space between them is ignored.

    ``name`` is what a UsageError calls the board.
    """
    characters = "".join(text.split())
    for place, character in enumerate(characters):
        if character not in f"123456789{BLANKS}":
            where = f"row {place // SIDE + 1}, column {place % SIDE + 1}"
            raise UsageError(f"{name}: {character!r} at {where}, expected 1 to 9, or 0 or . for a blank, or * or _")
    if len(characters) != CELLS:
        raise UsageError(
            f"{name}: {len(characters)} characters, expected {CELLS}: nine rows of nine, 0 or . for a blank"
        )
    return tuple(0 if character in BLANKS else int(character) for character in characters)


def given_boards(word: str) -> list[tuple[str, Board]]:
    """Read ``--board``, a board or a file of boards, one a line; each with its name in errors."""
    path = Path(word).expanduser()
    if not path.is_file():
        return [("--board", parse_board(word, "--board"))]
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    named = [(f"{path}, line {number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    return [(name, parse_board(line, name)) for name, line in named]


def check_board(board: Sequence[int], name: str = "board") -> Board:
    """Return the one solution of a board; UsageError: equal givens in a unit, no solution, or more than one."""
    for unit_name, unit in zip(_NAMES, UNITS, strict=True):
        digits = [board[cell] for cell in unit if board[cell]]
        if twice := next((digit for digit in digits if digits.count(digit) > 1), 0):
            raise UsageError(f"{name}: {unit_name} has the digit {twice} twice: change one of them")
    solved = solutions(board)
    first, second = next(solved, None), next(solved, None)
    if first is None:
        raise UsageError(f"{name}: no digits fill its blanks by the rules, expected one solution: correct a given")
    if second is not None:
        raise UsageError(f"{name}: more than one solution, expected one: add givens")
    return first
