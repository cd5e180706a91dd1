"""Grids of text as Markdown and as LaTeX."""

import re
from dataclasses import dataclass

from tabulate import tabulate

BOLD = ("\x02", "\x03")
"""Stand for bold in a grid until its text has been escaped."""
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    | {"<": "$<$", ">": "$>$", "|": "$|$", "±": "$\\pm$", "≠": "$\\neq$", "×": "$\\times$"}
    | {BOLD[0]: "\\textbf{", BOLD[1]: "}"}
)


@dataclass(frozen=True)
class Grid:
    """A rectangle of text."""

    headers: list[str]
    rows: list[list[str]]


def markdown_table(grid: Grid) -> str:
    """Write a grid in GitHub's form of Markdown."""
    headers, *rows = [[escaped(cell) for cell in row] for row in [grid.headers, *grid.rows]]
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def escaped(cell: str) -> str:
    """Return the text of a cell as it stands in a Markdown table."""
    return in_markdown(cell).replace("|", "\\|")


def latex_table(grid: Grid, comment: str) -> str:
    """Write a tabular of booktabs, under a comment."""
    lines = [f"% {comment}; needs the booktabs package"]
    lines += [f"\\begin{{tabular}}{{{'l' * len(grid.headers)}}}", "\\toprule"]
    lines += [" & ".join(_latex(header) for header in grid.headers) + " \\\\", "\\midrule"]
    lines += [" & ".join(_latex(cell) for cell in row) + " \\\\" for row in grid.rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _latex(text: str) -> str:
    return one_line(text).translate(_LATEX)


def in_markdown(text: str) -> str:
    """Return text as one line of Markdown in which no HTML begins: what a note says is shown, not run."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", one_line(text))


def one_line(text: str) -> str:
    """Replace every run of white space by one blank."""
    return " ".join(text.split())
