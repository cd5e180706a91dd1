"""Colours on a terminal: text on a background from green, low, to purple, high."""

import os
from typing import TextIO

# Of the 256 colours: background and text, from low to high.
_SHADES = ((28, 231), (71, 16), (151, 16), (255, 16), (183, 16), (134, 16), (54, 231))


def wants_color(stream: TextIO) -> bool:
    """Return whether a stream is a terminal, and neither $NO_COLOR nor TERM=dumb asks for plain text."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Shader:
    """Puts texts on the colour of a value.

    Args:
        low, high: the values of the first and the last colour.
        colored: False leaves texts as they are.
    """

    def __init__(self, low: float, high: float, colored: bool) -> None:
        self.low, self.high, self.colored = low, high, colored

    def __call__(self, text: str, value: float | None) -> str:
        """Return a text on the colour of a value; as it is without a value."""
        if not self.colored or value is None:
            return text
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        background, ink = _SHADES[min(int(min(max(share, 0.0), 1.0) * len(_SHADES)), len(_SHADES) - 1)]
        return f"\x1b[48;5;{background};38;5;{ink}m{text}\x1b[0m"
