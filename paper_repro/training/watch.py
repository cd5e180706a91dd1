"""What happens after every training step, whoever trains: curve, progress, checkpoint, stop."""

import time
from collections.abc import Callable
from typing import Any

from paper_repro.cells.tasks import Report, StopRequestedError
from paper_repro.training.journal import Silent
from paper_repro.training.losses import LossLog
from paper_repro.training.machine import Machine

SHARE_OF_SAVING = 0.05
"""The largest part of the time that checkpoints by the clock may take."""


class Watch:
    """Keeps the loss log, reports, has checkpoints saved when they are due, and ends a run that has to end.

    Every checkpoint holds all that a resume needs, the carries with the weights.  A carry of many gigabytes makes it
    slow to write, so the seconds between two checkpoints are at least 20 times those that the last one took to save.

    Args:
        save: writes a checkpoint after so many steps; ``state_dict`` of this watch is part of it.
        journal: is told every step, and has it on the disk before the checkpoint; None: nobody is told.
    """

    def __init__(
        self,
        log: LossLog,
        machine: Machine,
        report: Report,
        save: Callable[[int], None],
        journal: Silent | None = None,
    ) -> None:
        self.log = log
        self.journal = journal or Silent()
        self.machine = machine
        self.report = report
        self.save = save
        self._earlier_seconds = 0.0
        self._started = self._reported = self._saved_at = time.monotonic()
        self._saved_step: int | None = None
        self._saving_seconds = 0.0

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the start, those of the interrupted runs before this one included."""
        return self._earlier_seconds + time.monotonic() - self._started

    def after_step(self, step: int) -> bool:
        """Account for step ``step`` (the number of steps done, its losses already in the log).

        Returns whether training should go on: False once every model has diverged.

        Raises:
            StopRequestedError: after a checkpoint was saved.
        """
        self.report.saves = True
        now = time.monotonic()
        last = step == self.log.steps
        self.journal.after_step(step, self.log.latest, self.seconds)
        told = last or now - self._reported >= self.machine.progress_every_seconds
        over = told and None not in self.log.diverged()
        if not over and (last or self._due(step, now)):
            self._save(step)  # before the last step is told: from then on a request to stop ends the process
        if told:
            self._reported = now
            self.journal.flush()
            self.report.progress(step, self.log.steps, self.log.mean_latest())
        if over:
            return False
        self.stop_if_requested(step)
        return True

    def stop_if_requested(self, step: int) -> None:
        """Raise StopRequestedError if the user wants to stop; the checkpoint of ``step`` is on the disk by then."""
        if self.report.stop_requested:
            if step > 0:
                self._save(step)
            raise StopRequestedError(f"stopped after step {step} of {self.log.steps}")

    def resumed_at(self, step: int) -> None:
        """Note that the checkpoint of ``step`` is on the disk already."""
        self._saved_step = step

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.log.state_dict(), "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.log.load_state_dict(state["losses"])
        self._earlier_seconds = float(state["seconds"])

    def _due(self, step: int, now: float) -> bool:
        steps, seconds = self.machine.checkpoint_every_steps, self.machine.checkpoint_every_seconds
        if steps and step % steps == 0:
            return True
        return bool(seconds) and now - self._saved_at >= max(seconds or 0.0, self._saving_seconds / SHARE_OF_SAVING)

    def _save(self, step: int) -> None:
        if self._saved_step != step:
            self.report.check_lease()
            self.journal.flush()
            started = time.monotonic()
            self.save(step)
            self._saved_step, self._saving_seconds = step, time.monotonic() - started
        self._saved_at = time.monotonic()
