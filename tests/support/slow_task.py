"""A task without torch for tests of the runner: it takes its time, checkpoints every step, and can go wrong on request.

It is named ``paper_repro.tests.support.slow_task.SlowTask`` (a checkout's root lies on the package's path).
"""

import contextlib
import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_repro.base.files import CorruptFileError, read_with_digest, write_with_digest
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import DIVERGED, FINISHED, Cell, Cost, Outcome, Report, StopRequestedError, Task

LOG_VARIABLE = "SLOW_TASK_LOG"
HANGS_VARIABLE = "SLOW_TASK_HANGS"


class SlowTask(Task):
    """Sums pseudo-random numbers, one a step; ``mishap`` names what goes wrong at step ``at``.

    Where the file ``needs`` is absent, ``score`` is not available.
    """

    def __init__(
        self, steps: int = 10, delay: float = 0.01, mishap: str = "", at: int = 3, only_seed: int = -1, needs: str = ""
    ) -> None:
        self.steps, self.delay, self.mishap, self.at = steps, delay, mishap, at
        self.only_seed, self.needs = only_seed, needs

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        report.saves = True
        state = folder / "state.json"
        step, sums = 0, [0.0] * len(cells)
        with contextlib.suppress(FileNotFoundError, CorruptFileError):
            step, sums = json.loads(read_with_digest(state))
        _log("begin", cells)
        while step < self.steps:
            time.sleep(self.delay)
            _log("step", cells)
            sums = [total + mix(cell.id, step) % 1000 / 1000 for total, cell in zip(sums, cells, strict=True)]
            step += 1
            if step == self.at and self.mishap and self.only_seed in (-1, cells[0].config["seed"]):
                self._go_wrong(folder)
            write_with_digest(state, json.dumps([step, sums]).encode())
            report.progress(step, self.steps, sums[0])
            if report.stop_requested:
                raise StopRequestedError
        if self.mishap == "measure" and not (folder / "measured").exists():
            (folder / "measured").touch()
            _log("measure", cells)
            with contextlib.suppress(Exception):  # as a probe may
                time.sleep(60)
        if self.mishap == "diverge" and self.only_seed in (-1, cells[0].config["seed"]):
            return [Outcome(DIVERGED, note=f"loss is nan at step {self.at}") for _ in cells]
        curves = {"loss": [(index, float(index)) for index in range(500)]}
        lacking = {"score": f"needs {self.needs}"} if self.needs and not Path(self.needs).is_file() else {}
        return [Outcome(FINISHED, metrics={"total": total}, curves=curves, unavailable=lacking) for total in sums]

    def _go_wrong(self, folder: Path) -> None:
        if self.mishap == "raise":
            raise RuntimeError("the task broke")
        if self.mishap == "memory":
            raise MemoryError
        if self.mishap == "disk":
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.mishap == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mishap == "die once" and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Hanging(SlowTask):
    """Waits for a child, as for a compiler, while ``HANGS_VARIABLE`` is set; its first step comes after that."""

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        if os.environ.get(HANGS_VARIABLE):
            _log("hang", cells)
            with contextlib.suppress(Exception):
                subprocess.run(["sleep", "60"], check=True)
        return super().run(cells, folder, report)


class OnCards(SlowTask):
    """Logs which GPUs its process sees."""

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        _log(os.environ.get("CUDA_VISIBLE_DEVICES", "all"), cells)
        return super().run(cells, folder, report)


class BrokenCount(SlowTask):
    """Cannot count what a cell costs, or, where the config says ``die``, kills the process that asks."""

    def cost(self, config: Mapping[str, Any]) -> Cost | None:
        if config.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        raise ZeroDivisionError("the count broke")


def _log(what: str, cells: Sequence[Cell]) -> None:
    if path := os.environ.get(LOG_VARIABLE):
        with Path(path).open("a") as stream:
            stream.write("".join(f"{what} {cell.id} {os.getpid()}\n" for cell in cells))
