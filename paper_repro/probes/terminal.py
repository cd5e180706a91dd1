"""Thoughts on a terminal: boards, and texts on a background from green, low, to purple, high."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from paper_repro.probes.thoughts import BoardThought

_SHADES = ((28, 231), (71, 16), (151, 16), (255, 16), (183, 16), (134, 16), (54, 231))
"""Background and text, among the 256 colours, from low to high."""


def wants_color(stream: TextIO) -> bool:
    """Return whether a stream is a terminal, and neither $NO_COLOR nor TERM=dumb asks for plain text."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Shader:
    """Puts texts on the colour of a value; ``low`` and ``high`` have the first and the last colour."""

    def __init__(self, low: float, high: float, colored: bool) -> None:
        self.low, self.high, self.colored = low, high, colored

    def __call__(self, text: str, value: float) -> str:
        if not self.colored:
            return text
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        background, ink = _SHADES[min(int(min(max(share, 0.0), 1.0) * len(_SHADES)), len(_SHADES) - 1)]
        return f"\x1b[48;5;{background};38;5;{ink}m{text}\x1b[0m"


def print_board(
    thought: "BoardThought", givens: Sequence[int], solution: Sequence[int], steps: Sequence[int], shade: Shader
) -> None:
    """Print a verdict, and the board after these steps: digits, wrong ones with a star, and the energies of cells."""
    board = thought.boards[-1]
    blanks = [cell for cell, digit in enumerate(givens) if not digit]
    right = sum(board[cell] == solution[cell] for cell in blanks)
    verdict = "accepts" if thought.accepted[-1] else "does not accept"
    print(
        f"\nsteps {thought.trace.num_steps}, NFE {thought.trace.num_evaluations}, sample {thought.sample}: the judge "
        f"{verdict} the board; {right} of {len(blanks)} blanks as in the solution, the others have *"
    )
    for step in steps:
        board, energies = thought.boards[step], thought.energies[step]
        said = ", accepted" if thought.accepted[step] else ""
        print(f"after step {step}{said}: energy {sum(energies):.6g}, of each cell on the right")
        for first in range(0, 81, 9):
            cells = range(first, first + 9)
            stars = {cell: " " if board[cell] == solution[cell] else "*" for cell in cells}
            digits = (shade(f"{board[cell]}{stars[cell]}", energies[cell]) for cell in cells)
            print(" ".join(digits), " ", " ".join(shade(f"{energies[cell]:>8.3g}", energies[cell]) for cell in cells))
