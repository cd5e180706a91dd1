"""How far a sweep is: counts of cells, the step of each running job, and the time left.

A terminal shows it by bars, one for all cells and one for the steps of each running job; a file or a pipe gets lines.
"""

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from paper_repro.base.errors import duration

if TYPE_CHECKING:
    from rich.progress import TaskID

NO_STEP = "no step"
"""Stands in the place of the step of a job that imports, makes a trial, or counts."""
PLAIN_EVERY_SECONDS = 10.0
REDRAW_SECONDS = 0.25


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
    """By the worker's number."""
    began: float = field(default_factory=time.monotonic)
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
        """Say how many cells are in which state; the time left is no part of it."""
        running = sum(job.cells for job in self.running.values())
        left = self.total - self.done - self.failed - running
        return ", ".join(
            [f"{self.done}/{self.total} cells done", f"{running} running", f"{left} left", *self.troubles()]
        )

    def troubles(self) -> list[str]:
        """Say which cells have no result and are not to be run by this process."""
        counts = {"failed or diverged": self.failed, "running elsewhere": self.elsewhere}
        return [f"{count} {what}" for what, count in counts.items() if count]


@dataclass
class RunningJob:
    """One batch of cells in flight, as it is shown."""

    label: str
    cells: int
    """Those that have no result yet."""
    work: float
    step: int = 0
    steps: int = 1
    loss: float | None = None
    began: float = field(default_factory=time.monotonic)
    first: tuple[float, int] | None = None
    """When a step was first heard of, and which: what came before was start, such as imports or a trial."""
    latest: float = 0.0

    def reach(self, step: int, steps: int, loss: float | None) -> None:
        """Note that a step is done."""
        self.step, self.steps, self.loss = step, steps, loss
        self.latest = time.monotonic()
        self.first = self.first or (self.latest, step)

    @property
    def begun(self) -> bool:
        return self.first is not None

    def rate(self) -> float | None:
        """Return the steps per second since the first was heard of; None before there is a second."""
        if self.first is None or self.step <= self.first[1] or self.latest <= self.first[0]:
            return None
        return (self.step - self.first[1]) / (self.latest - self.first[0])

    def eta_seconds(self) -> float | None:
        """Return seconds left at that rate; None before there is one, and after the last step."""
        rate = self.rate()
        if rate is None or self.step >= self.steps:
            return None
        return max(0.0, (self.steps - self.step) / rate - (time.monotonic() - self.latest))

    @property
    def name(self) -> str:
        """The label, with the number of cells where there are several."""
        return self.label if self.cells == 1 else f"{self.label} ({self.cells} cells)"

    @property
    def fraction(self) -> float:
        """The share of the job's steps that are done, those before it was resumed included."""
        return self.step / max(self.steps, 1)

    @property
    def count(self) -> str:
        """The steps done, and what is done after the last: it measures, and saves."""
        if not self.begun:
            return NO_STEP
        return f"{self.step}/{self.steps}{'' if self.step < self.steps else ', evaluating'}"

    def line(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        return f"{self.name}: {'step ' if self.begun else ''}{self.count}{loss}"


class Display:
    """Shows a sweep until it is closed; used as a context manager."""

    def __init__(self, sweep: Sweep, stream: TextIO | None = None) -> None:
        self._sweep = sweep
        self._stream = stream or sys.stderr
        self._shown, self._last_line = -PLAIN_EVERY_SECONDS, ""
        self._bars: _Bars | None = None

    def __enter__(self) -> "Display":
        if self._stream.isatty():
            self._bars = _Bars(self._stream)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.close()

    def say(self, text: str) -> None:
        """Print a line that stays, above the bars if there are any."""
        if self._bars is not None:
            self._bars.say(text)
        else:
            print(text, file=self._stream, flush=True)

    def update(self) -> None:
        """Bring what is shown up to date, but not more often than a reader can see."""
        now = time.monotonic()
        if now - self._shown < (PLAIN_EVERY_SECONDS if self._bars is None else REDRAW_SECONDS):
            return
        if self._bars is not None:
            self._bars.show(self._sweep)
        elif not self._sweep.running or not self._print_changes():
            return
        self._shown = now

    def _print_changes(self) -> bool:
        """Print a line, unless nothing but the time left has changed since the last one; whether it was printed."""
        counts, eta = self._sweep.line(), self._sweep.eta_seconds()
        jobs = "; ".join(job.line() for job in self._sweep.running.values())
        if (line := f"{counts}: {jobs}") == self._last_line:
            return False
        self._last_line = line
        left = "" if eta is None else f", ETA {duration(eta)}"
        print(f"{counts}{left}: {jobs}", file=self._stream, flush=True)
        return True


class _Bars:
    """The bars of a sweep."""

    beside = ("count", "rate", "elapsed", "left", "note")
    """What stands to the right of a bar."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            BarColumn(12),
            *(
                TextColumn(f"{{task.fields[{key}]}}", markup=False, justify="right", table_column=Column(no_wrap=True))
                for key in self.beside
            ),
            console=Console(file=stream),
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._all = self._add("all cells")
        self._jobs: dict[int, TaskID] = {}
        """By the worker's number."""
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def show(self, sweep: Sweep) -> None:
        for number in self._jobs.keys() - sweep.running.keys():
            self._progress.remove_task(self._jobs.pop(number))
        for number, job in sweep.running.items():
            if number not in self._jobs:
                self._jobs[number] = self._add(job.name)
            self._show_job(self._jobs[number], job)
        ended = sweep.done + sweep.failed
        self._progress.update(
            self._all,
            description=", ".join(["all cells", *sweep.troubles()]),
            total=sweep.total,
            completed=ended + sum(job.cells * job.fraction for job in sweep.running.values()),
            count=f"{ended}/{sweep.total}",
            elapsed=duration(time.monotonic() - sweep.began),
            left=_left(sweep.eta_seconds()),
        )
        self._progress.refresh()

    def _add(self, name: str) -> "TaskID":
        return self._progress.add_task(name, total=None, **dict.fromkeys(self.beside, ""))  # type: ignore[arg-type]

    def _show_job(self, task: "TaskID", job: RunningJob) -> None:
        rate = job.rate()
        self._progress.update(
            task,
            total=job.steps if job.begun else None,  # no total: a bar that only says that something goes on
            completed=job.step,
            count=job.count,
            rate="" if rate is None else f"{rate:.3g} steps/s",
            elapsed=duration(time.monotonic() - job.began),
            left=_left(job.eta_seconds()),
            note="" if job.loss is None else f"loss {job.loss:.4g}",
        )


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"ETA {duration(seconds)}"
