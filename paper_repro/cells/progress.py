"""How far a sweep is: a line, drawn again on a terminal; in a file or a pipe a new one where something has changed."""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from paper_repro.base.errors import duration

PLAIN_EVERY_SECONDS = 10.0
REDRAW_SECONDS = 0.25
CLEAR = "\r\x1b[K"
"""What a terminal takes to clear the line."""


@dataclass(eq=False)
class RunningJob:
    """One batch of cells in flight, as it is shown."""

    label: str
    cells: int
    """Those that have no result yet."""
    work: float
    step: int = 0
    steps: int = 1
    loss: float | None = None

    def __str__(self) -> str:
        if self.step == 0:  # it imports, compiles or counts
            return f"{self.label}: no step"
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        return f"{self.label}: step {self.step}/{self.steps}{'' if self.step < self.steps else ', evaluating'}{loss}"


@dataclass
class Display:
    """Shows a sweep until it is closed; used as a context manager."""

    total: int
    done: int = 0
    failed: int = 0
    elsewhere: int = 0
    work: float = 0.0
    """Expected work of the cells to run, in any unit that is proportional to time."""
    work_done: float = 0.0
    running: Sequence[RunningJob] = ()
    stream: TextIO | None = None

    def __enter__(self) -> "Display":
        self._out = self.stream or sys.stderr
        self._clear = CLEAR if self._out.isatty() else ""
        self._shown, self._said = -PLAIN_EVERY_SECONDS, ""
        self._began: tuple[float, float] | None = None
        return self

    def __exit__(self, *_: object) -> None:
        print(self._clear, end="", file=self._out, flush=True)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        print(f"{self._clear}{text}", file=self._out, flush=True)

    def update(self) -> None:
        """Bring what is shown up to date, but not more often than a reader can see."""
        now = time.monotonic()
        if now - self._shown < (REDRAW_SECONDS if self._clear else PLAIN_EVERY_SECONDS):
            return
        counts, jobs = self.counts(), "; ".join(map(str, self.running))
        line = ": ".join(filter(None, [counts + self._left(now), jobs]))
        if self._clear:
            columns = shutil.get_terminal_size().columns
            print(f"{self._clear}{line[: columns - 1]}", end="", file=self._out, flush=True)
        elif not jobs or counts + jobs == self._said:
            return
        else:
            self.say(line)
        self._shown, self._said = now, counts + jobs

    def _left(self, now: float) -> str:
        """Say how long the rest takes at the rate since the first step that was heard of."""
        done = self.work_so_far
        if self._began is None and done:
            self._began = now, done
        if self._began is None or done <= self._began[1]:
            return ""
        seconds = (self.work - done) * (now - self._began[0]) / (done - self._began[1])
        return f", ETA {duration(max(0.0, seconds))}"

    @property
    def work_so_far(self) -> float:
        """The work that is done, that of running jobs included, before they were resumed, too."""
        return self.work_done + sum(job.work * job.step / max(job.steps, 1) for job in self.running)

    def counts(self) -> str:
        """Say how many cells are in which state."""
        running = sum(job.cells for job in self.running)
        left = self.total - self.done - self.failed - running
        troubles = {"failed or diverged": self.failed, "running elsewhere": self.elsewhere}
        own = [f"{self.done}/{self.total} cells done", f"{running} running", f"{left} left"]
        return ", ".join([*own, *(f"{count} {what}" for what, count in troubles.items() if count)])
