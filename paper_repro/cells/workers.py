"""How many jobs run at once: ``machine.workers``, or as many as raise the rate of a sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paper_repro.base.identity import AUTO
from paper_repro.cells.planned import cards, on_gpu

MOST_ON_A_CARD = 8
LEAST_GAIN = 1.1
"""The rate with one worker more on each GPU, over that without, from which on it stays."""
MEASURED_SECONDS = 60.0
WARM_UP_SECONDS = 120.0
"""How long a worker may import and compile before the rate is measured without its first step."""
SPARE = 1.2
"""The memory that must be free on a GPU for one worker more, over the most that a worker there has reserved."""

Memory = tuple[int, int]
"""Bytes that a worker has reserved on its GPU at most, and those that are free there."""


def first_count(machine: Mapping[str, Any], gpus: int | None = None) -> int:
    """Return how many jobs run at once at first: ``machine.workers``; with auto as many as have GPUs of their own, of
    ``gpus`` in all (None: those that this process may use).
    """
    wanted = machine.get("workers", 1)
    if wanted != AUTO:
        return int(wanted)
    devices = machine.get("devices", 1)
    if not on_gpu(machine) or not isinstance(devices, int):
        return 1
    return max(1, (len(cards()) if gpus is None else gpus) // devices)


@dataclass
class Workers:
    """Counts the jobs that run at once; with ``grows``, ``cards`` more each time that this raises the rate of work.

    The rate is that of all jobs together, in expected seconds of work per second.
    """

    count: int
    cards: int = 1
    grows: bool = False
    _rate: float = 0.0
    _began: float | None = None
    _from: tuple[float, float] | None = None
    """When the measurement of this count began, and the work that was done then."""

    @classmethod
    def of(cls, machine: Mapping[str, Any]) -> "Workers":
        """Return the workers of a sweep whose jobs have this ``machine`` section."""
        alone = machine.get("devices", 1) == machine.get("nodes", 1) == 1
        grows = machine.get("workers") == AUTO and on_gpu(machine) and alone
        return cls(first_count(machine), max(1, len(cards())), grows)

    def look(self, now: float, work: float, steps: bool, memory: Sequence[Memory | None]) -> bool:
        """Take in how far the jobs are; whether more or fewer are to run at once from now on.

        Args:
            now, work: seconds, and the work that is done.
            steps: whether ``count`` jobs run, each past its first step.
            memory: of each job that runs; None: not known.
        """
        if not self.grows:
            return False
        if self._began is None:
            self._began = now
        if self._from is None:
            if steps or now - self._began > WARM_UP_SECONDS:
                self._from = now, work
            return False
        if now - self._from[0] < MEASURED_SECONDS:
            return False
        rate = (work - self._from[1]) / (now - self._from[0])
        if rate <= 0:  # nothing moved, or a job began again
            self._from = now, work
            return False
        if rate < LEAST_GAIN * self._rate:
            self.count, self.grows = self.count - self.cards, False
            return True
        if self.count >= MOST_ON_A_CARD * self.cards or not _fits(memory):
            self.grows = False
            return False
        self.count += self.cards
        self._rate, self._began, self._from = rate, None, None
        return True


def _fits(memory: Sequence[Memory | None]) -> bool:
    known = [each for each in memory if each is not None]
    return bool(known) and min(free for _, free in known) > SPARE * max(reserved for reserved, _ in known)
