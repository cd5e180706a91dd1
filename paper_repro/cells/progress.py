"""How far a sweep is: a line, with a bar on a terminal; in a file or a pipe a new line where something has changed."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from paper_repro.base.errors import duration

PLAIN_EVERY_SECONDS = 10.0
REDRAW_SECONDS = 0.25
_RATE_SECONDS = 600.0
"""Over how long a time the rate of work is taken, from which the time left follows."""


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
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        self._out = self.stream or sys.stderr
        self._bar = self._out.isatty()
        self._shown, self._last_line = -PLAIN_EVERY_SECONDS, ""
        self._progress = Progress(
            BarColumn(12),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            console=Console(file=self._out),
            auto_refresh=False,
            transient=True,
            expand=True,
            get_time=time.monotonic,
            speed_estimate_period=_RATE_SECONDS,
        )
        self._task = self._progress.add_task("", total=self.work or None)
        if self._bar:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line that stays, above the bar if there is one."""
        if self._bar:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._out, flush=True)

    def update(self) -> None:
        """Bring what is shown up to date, but not more often than a reader can see."""
        now = time.monotonic()
        if now - self._shown < (REDRAW_SECONDS if self._bar else PLAIN_EVERY_SECONDS):
            return
        line = ": ".join(filter(None, [self.counts(), "; ".join(map(str, self.running))]))
        self._progress.update(self._task, completed=self.work_so_far, description=line)
        if self._bar:
            self._progress.refresh()
        elif not self.running or line == self._last_line:
            return
        else:
            left = self._progress.tasks[0].time_remaining
            counts = self.counts()
            self.say(counts + ("" if left is None else f", ETA {duration(left)}") + line.removeprefix(counts))
        self._shown, self._last_line = now, line

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
