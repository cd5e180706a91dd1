"""How the parts of a table's document are laid out: as files have them, or within the width of a terminal."""

import re
import textwrap
from itertools import zip_longest

from paper_repro.artifacts.typesetting import Grid, escaped, in_markdown, markdown_table

VERDICT, AS_REFERENCE = "verdict", "as reference"
GLUE = "\u00a0"
"""Stands for a blank at which no line may end, until the lines are made."""
INDENT = "  "
_NUMBER = re.compile(r"(?<=\d) (?=[±%])|(?<=±) (?=\d)|(?<=off) (?=by)|(?<=by) (?=[+-]\d)")


class Layout:
    """The layout of table.md: each part as wide as it is."""

    def prose(self, text: str) -> str:
        return in_markdown(text)

    def notes(self, notes: list[str]) -> str:
        return "\n".join(f"* {in_markdown(note)}" for note in notes)

    def table(self, grid: Grid, fixed: int) -> list[str]:
        """Return a grid as one or several tables, each of which begins with the first ``fixed`` columns."""
        return [markdown_table(grid)]

    def claims(self, grid: Grid) -> str:
        return markdown_table(grid)


FILE = Layout()


class TerminalLayout(Layout):
    """The layout of a terminal: what is too wide is wrapped or split.

    Args:
        width: how many characters a line may have.  A single word may still be longer.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def prose(self, text: str) -> str:
        return self._wrapped(in_markdown(text))

    def notes(self, notes: list[str]) -> str:
        return "\n".join(self._wrapped(f"* {in_markdown(note)}", INDENT) for note in notes)

    def table(self, grid: Grid, fixed: int) -> list[str]:
        """Return the grid in one piece if it fits, else a table for each quantity and one for those of one column."""
        if self._fits(whole := markdown_table(grid)):
            return [whole]
        found = []
        for title, columns in _quantities(grid.headers, fixed).items():
            part = _part(grid, fixed, columns, title)
            found += [self.prose(f"### {title}")] if title else []
            found += [laid_out(piece, self.width) for piece in self._pieces(part, fixed)]
        return found

    def claims(self, grid: Grid) -> str:
        """Return the claims as a table if it fits, else as a list."""
        whole = markdown_table(grid)
        return whole if self._fits(whole) else "\n".join(self._claim(row) for row in grid.rows)

    def _claim(self, row: list[str]) -> str:
        name, whose, says, word, reason = map(in_markdown, row)
        if not name:  # a part of the claim above
            return self._wrapped(f"  * {says}: {word}" + (f"; {reason}" if reason else ""), 2 * INDENT)
        lines = [f"* {name} ({whose}): {word}", f"  {says}", *([f"  because: {reason}"] if reason else [])]
        return "\n".join(self._wrapped(line, INDENT) for line in lines)

    def _wrapped(self, text: str, indent: str = "") -> str:
        return "\n".join(_wrap(text, self.width, indent))

    def _fits(self, text: str) -> bool:
        return max(map(len, text.splitlines()), default=0) <= self.width

    def _pieces(self, grid: Grid, fixed: int) -> list[Grid]:
        """Return a grid in as few pieces as fit when their cells are wrapped; each begins with the fixed columns."""
        least = _least(grid)
        pieces: list[list[int]] = [[]]
        for column in range(fixed, len(grid.headers)):
            together = [*range(fixed), *pieces[-1], column]
            if pieces[-1] and _total([least[one] for one in together]) > self.width:
                pieces.append([])
            pieces[-1].append(column)
        return [_part(grid, fixed, columns) for columns in pieces]


def _quantities(headers: list[str], fixed: int) -> dict[str, list[int]]:
    """Return the columns of each quantity by its title; those of quantities with one column stand under ""."""
    found: dict[str, list[int]] = {}
    title = ""
    for column, header in enumerate(headers[fixed:], start=fixed):
        if header not in (VERDICT, AS_REFERENCE):
            title = header.rpartition(": ")[0]
        found.setdefault(title, []).append(column)
    return found


def _part(grid: Grid, fixed: int, columns: list[int], title: str = "") -> Grid:
    """Return some columns of a grid behind the fixed ones, without the rows that say nothing in them."""
    chosen = [*range(fixed), *columns]
    headers = [grid.headers[column].removeprefix(f"{title}: " if title else "") for column in chosen]
    rows = [row for row in grid.rows if any(row[column] for column in columns)]
    return Grid(headers, [[row[column] for column in chosen] for row in rows or grid.rows])


def laid_out(grid: Grid, width: int) -> str:
    """Return a table as wide as its text, or narrower: then cells are wrapped, the widest columns first."""
    widths = _widths(grid, width)
    header, *rows = [_lines(row, widths) for row in [grid.headers, *grid.rows]]
    rule = "|" + "|".join("-" * (count + 2) for count in widths) + "|"
    return "\n".join([*header, rule, *(line for row in rows for line in row)])


def _widths(grid: Grid, width: int) -> list[int]:
    least, widths = _least(grid), _natural(grid)
    while _total(widths) > width:
        wider = [column for column in range(len(widths)) if widths[column] > least[column]]
        if not wider:
            break
        widths[max(wider, key=lambda column: widths[column])] -= 1
    return widths


def _natural(grid: Grid) -> list[int]:
    return [max(map(len, column)) for column in _columns(grid)]


def _least(grid: Grid) -> list[int]:
    """Return the widths of the longest words; in the first column they may stand in a line that is indented."""
    longest = [max(map(len, _glued(" ".join(column)).split(" "))) for column in _columns(grid)]
    return [min(longest[0] + len(INDENT), _natural(grid)[0]), *longest[1:]]


def _lines(row: list[str], widths: list[int]) -> list[str]:
    """Return the lines of one row; where its first cell goes on in a second line, that is indented."""
    cells = [
        _wrap(escaped(cell), width, "" if column else INDENT)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |"
        for line in zip_longest(*cells, fillvalue="")
    ]


def _columns(grid: Grid) -> list[list[str]]:
    return [[escaped(cell) for cell in column] for column in zip(grid.headers, *grid.rows, strict=True)]


def _total(widths: list[int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(widths) + 3 * len(widths) + 1


def _glued(text: str) -> str:
    """Return text in which a number and its spread, unit or sign stand in one line."""
    return _NUMBER.sub(GLUE, text)


def _wrap(text: str, width: int, indent: str) -> list[str]:
    """Return text in lines of at most ``width``, if no word is longer; those behind the first begin with the indent."""
    lines = textwrap.wrap(_glued(text), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(GLUE, " ") for line in lines]
