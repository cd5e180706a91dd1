"""Live progress of a sweep: a rich display on a terminal, plain lines elsewhere."""

import sys
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TextIO

PLAIN_EVERY_SECONDS = 10.0
HOUR = 3600
DAY = 24 * HOUR
YEAR = 365 * DAY


@dataclass
class Sweep:
    """What is known about a sweep in flight."""

    total: int
    done: int = 0
    failed: int = 0
    elsewhere: int = 0
    work_total: float = 0.0
    """Expected work of the cells to run, in any unit that is proportional to time."""
    work_done: float = 0.0
    running: dict[int, "RunningJob"] = field(default_factory=dict)
    first: tuple[float, float] | None = None
    """When work was first seen to be done, and how much: what came before was start, such as imports."""

    def eta_seconds(self) -> float | None:
        """Return seconds left, from the work done since the first of it was seen; None before there is more."""
        finished = self.work_done + sum(job.work * job.fraction for job in self.running.values())
        now = time.monotonic()
        if self.first is None:
            self.first = (now, finished) if finished > 0.0 else None
            return None
        elapsed, done = now - self.first[0], finished - self.first[1]
        if done <= 0.0 or elapsed < 1.0:
            return None
        return max(0.0, elapsed * (self.work_total - finished) / done)

    def line(self) -> str:
        running = sum(job.cells for job in self.running.values())
        left = self.total - self.done - self.failed - running
        parts = [f"{self.done}/{self.total} cells done", f"{running} running", f"{left} left"]
        if self.failed:
            parts.append(f"{self.failed} failed or diverged")
        if self.elsewhere:
            parts.append(f"{self.elsewhere} running elsewhere")
        if (eta := self.eta_seconds()) is not None:
            parts.append(f"ETA {duration(eta)}")
        return ", ".join(parts)


@dataclass
class RunningJob:
    """One batch of cells in flight, as it is shown."""

    label: str
    cells: int
    work: float
    step: int = 0
    steps: int = 1
    loss: float | None = None

    @property
    def fraction(self) -> float:
        """The share of the job done in this session (a resumed job starts at its checkpoint)."""
        return self.step / max(self.steps, 1)

    def line(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        noun = "cell" if self.cells == 1 else "cells"
        return f"{self.label} ({self.cells} {noun}): step {self.step}/{self.steps}{loss}"


class Display:
    """Shows a sweep until it is closed; used as a context manager."""

    def __init__(self, sweep: Sweep, stream: TextIO | None = None) -> None:
        self._sweep = sweep
        self._stream = stream or sys.stderr
        self._last_plain = 0.0
        self._live: object | None = None

    def __enter__(self) -> "Display":
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            live = Live(console=Console(file=self._stream), refresh_per_second=4, transient=True)
            live.start()
            self._live = live
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()  # type: ignore[attr-defined]

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)  # type: ignore[attr-defined]
        else:
            print(text, file=self._stream, flush=True)

    def update(self) -> None:
        if self._live is not None:
            from rich.text import Text

            lines = [self._sweep.line(), *(f"  {job.line()}" for job in self._sweep.running.values())]
            self._live.update(Text("\n".join(lines)))  # type: ignore[attr-defined]
        elif time.monotonic() - self._last_plain >= PLAIN_EVERY_SECONDS and self._sweep.running:
            self._last_plain = time.monotonic()
            jobs = "; ".join(job.line() for job in self._sweep.running.values())
            print(f"{self._sweep.line()}: {jobs}", file=self._stream, flush=True)


def duration(seconds: float) -> str:
    """Write seconds in the units that a person would use."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * HOUR:
        return f"{seconds / HOUR:.1f} h"
    if seconds < 2 * YEAR:
        return f"{seconds / DAY:,.0f} days"
    return f"{seconds / YEAR:,.0f} years"
