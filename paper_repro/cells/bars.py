"""Bars of a sweep on a terminal: one for all cells, and one for the steps of each running job."""

import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from paper_repro.base.errors import duration
from paper_repro.cells.progress import RunningJob, Sweep

REDRAW_SECONDS = 0.25
_ALL = "all cells"
_BAR_CHARACTERS = 12
_BESIDE = ("count", "rate", "elapsed", "left", "note")
"""What stands to the right of a bar."""


class Bars:
    """Draws a sweep until it is closed, each time that it is shown, but not more often than a reader can see."""

    def __init__(self, stream: TextIO) -> None:
        name = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
        beside = [
            TextColumn(f"{{task.fields[{key}]}}", markup=False, justify="right", table_column=Column(no_wrap=True))
            for key in _BESIDE
        ]
        self._progress = Progress(
            name,
            BarColumn(_BAR_CHARACTERS),
            *beside,
            console=Console(file=stream),
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._all = self._add(_ALL)
        self._jobs: dict[int, TaskID] = {}
        """By the worker's number."""
        self._drawn = -REDRAW_SECONDS
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line that stays above the bars."""
        self._progress.console.print(text, markup=False, highlight=False)

    def show(self, sweep: Sweep) -> None:
        """Bring the bars up to date."""
        now = time.monotonic()
        if now - self._drawn < REDRAW_SECONDS:
            return
        self._drawn = now
        for number in self._jobs.keys() - sweep.running.keys():
            self._progress.remove_task(self._jobs.pop(number))
        for number, job in sweep.running.items():
            if number not in self._jobs:
                self._jobs[number] = self._add(job.name)
            self._show_job(self._jobs[number], job)
        ended = sweep.done + sweep.failed
        self._progress.update(
            self._all,
            description=", ".join([_ALL, *sweep.troubles()]),
            total=sweep.total,
            completed=ended + sum(job.cells * job.fraction for job in sweep.running.values()),
            count=f"{ended}/{sweep.total}",
            elapsed=duration(now - sweep.began),
            left=_left(sweep.eta_seconds()),
        )
        self._progress.refresh()

    def _add(self, name: str) -> TaskID:
        return self._progress.add_task(name, total=None, **dict.fromkeys(_BESIDE, ""))  # type: ignore[arg-type]

    def _show_job(self, task: TaskID, job: RunningJob) -> None:
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
