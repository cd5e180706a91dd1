"""A sweep while it runs, as a terminal shows it by bars, and as a file or a pipe gets it in plain lines."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from paper_repro.base.errors import duration
from paper_repro.cells.progress import Sweep

if TYPE_CHECKING:
    from paper_repro.cells.bars import Bars

PLAIN_EVERY_SECONDS = 10.0


class Display:
    """Shows a sweep until it is closed; used as a context manager."""

    def __init__(self, sweep: Sweep, stream: TextIO | None = None) -> None:
        self._sweep = sweep
        self._stream = stream or sys.stderr
        self._last_plain, self._last_line = -PLAIN_EVERY_SECONDS, ""
        self._bars: Bars | None = None

    def __enter__(self) -> "Display":
        if self._stream.isatty():
            from paper_repro.cells.bars import Bars  # imports rich

            self._bars = Bars(self._stream)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.close()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._bars is not None:
            self._bars.say(text)
        else:
            print(text, file=self._stream, flush=True)

    def update(self) -> None:
        if self._bars is not None:
            self._bars.show(self._sweep)
        elif time.monotonic() - self._last_plain >= PLAIN_EVERY_SECONDS and self._sweep.running:
            self._print_changes()

    def _print_changes(self) -> None:
        """Print a line, unless nothing but the time left has changed since the last one."""
        counts, eta = self._sweep.line(), self._sweep.eta_seconds()
        jobs = "; ".join(job.line() for job in self._sweep.running.values())
        if (line := f"{counts}: {jobs}") == self._last_line:
            return
        self._last_plain, self._last_line = time.monotonic(), line
        left = "" if eta is None else f", ETA {duration(eta)}"
        print(f"{counts}{left}: {jobs}", file=self._stream, flush=True)
