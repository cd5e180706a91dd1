"""Warnings that are printed once, below what they are about."""

import contextlib
import logging
import sys
from collections.abc import Iterator

FORMAT = "%(levelname)s: %(message)s"


class Later(logging.Handler):
    """Keeps warnings, each once, until they are printed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(FORMAT))
        self._waiting: dict[str, None] = {}
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what a logger warns of."""
        self.add(self.format(record))

    def add(self, line: str) -> None:
        """Keep a line, unless it has been printed."""
        if line not in self._printed:
            self._waiting[line] = None

    def print(self) -> None:
        """Print to stderr what has been kept since the last call."""
        for line in self._waiting:
            print(line, file=sys.stderr)
        self._printed |= {*self._waiting}
        self._waiting.clear()


@contextlib.contextmanager
def kept(*names: str) -> Iterator[Later]:
    """Keep the warnings of some loggers; what is not printed inside the block is printed at its end.

    Args:
        names: packages; their modules' loggers are below them.
    """
    later, loggers = Later(), [logging.getLogger(name) for name in names]
    propagated = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(later)
        logger.propagate = False
    try:
        yield later
    finally:
        for logger, before in zip(loggers, propagated, strict=True):
            logger.removeHandler(later)
            logger.propagate = before
        later.print()
