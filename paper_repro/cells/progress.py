"""How far a sweep is: counts of cells, the step of each running job, and the time left."""

import time
from dataclasses import dataclass, field

NO_STEP = "no step"
"""Stands in the place of the step of a job that imports, makes a trial, or counts."""


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
