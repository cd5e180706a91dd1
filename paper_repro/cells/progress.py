"""How far a sweep is: a bar for all cells and one for each running job on a terminal; lines in a file or a pipe."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from paper_repro.base.errors import duration

if TYPE_CHECKING:
    from rich.progress import TaskID

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

    @property
    def fraction(self) -> float:
        """The share of the job's steps that are done, those before it was resumed included."""
        return self.step / max(self.steps, 1)

    @property
    def state(self) -> str:
        """The step, if there is one: a job that imports, compiles or counts has none."""
        if self.step == 0:
            return "no step"
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        return f"step {self.step}/{self.steps}{'' if self.step < self.steps else ', evaluating'}{loss}"


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
        self._bars = self._out.isatty()
        self._shown, self._last_line = -PLAIN_EVERY_SECONDS, ""
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            BarColumn(12),
            TextColumn("{task.fields[state]}", markup=False, justify="right", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=self._out),
            auto_refresh=False,
            transient=True,
            expand=True,
            get_time=time.monotonic,
            speed_estimate_period=_RATE_SECONDS,
        )
        self._all = self._progress.add_task("all cells", total=self.work or None, state="")
        self._tasks: dict[RunningJob, TaskID] = {}
        if self._bars:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line that stays, above the bars if there are any."""
        if self._bars:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._out, flush=True)

    def update(self) -> None:
        """Bring what is shown up to date, but not more often than a reader can see."""
        now = time.monotonic()
        if now - self._shown < (REDRAW_SECONDS if self._bars else PLAIN_EVERY_SECONDS):
            return
        self._progress.update(self._all, completed=self.work_so_far, state=f"{self.done + self.failed}/{self.total}")
        if self._bars:
            self._draw()
        elif not self.running or not self._print_line():
            return
        self._shown = now

    @property
    def work_so_far(self) -> float:
        """The work that is done, that of running jobs included."""
        return self.work_done + sum(job.work * job.fraction for job in self.running)

    def counts(self) -> str:
        """Say how many cells are in which state."""
        running = sum(job.cells for job in self.running)
        left = self.total - self.done - self.failed - running
        own = [f"{self.done}/{self.total} cells done", f"{running} running", f"{left} left"]
        return ", ".join([*own, *self._troubles()])

    def _troubles(self) -> list[str]:
        """Say which cells have no result and are not to be run by this process."""
        counts = {"failed or diverged": self.failed, "running elsewhere": self.elsewhere}
        return [f"{count} {what}" for what, count in counts.items() if count]

    def _print_line(self) -> bool:
        """Print a line, unless nothing but the time left has changed since the last one; whether it was printed."""
        jobs = "; ".join(f"{job.label}: {job.state}" for job in self.running)
        if (line := f"{self.counts()}: {jobs}") == self._last_line:
            return False
        self._last_line = line
        left = self._progress.tasks[0].time_remaining
        self.say(self.counts() + ("" if left is None else f", ETA {duration(left)}") + f": {jobs}")
        return True

    def _draw(self) -> None:
        for job in self._tasks.keys() - {*self.running}:
            self._progress.remove_task(self._tasks.pop(job))
        for job in self.running:
            if job not in self._tasks:
                name = job.label if job.cells == 1 else f"{job.label} ({job.cells} cells)"
                self._tasks[job] = self._progress.add_task(name, total=None, state="")
            # No total: a bar that only says that something goes on.
            total = job.steps if job.step else None
            self._progress.update(self._tasks[job], total=total, completed=job.step, state=job.state)
        self._progress.update(self._all, description=", ".join(["all cells", *self._troubles()]))
        self._progress.refresh()
