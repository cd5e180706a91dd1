"""What a job of a cluster runs: cells of an artifact until all have results, as one of several runners.

``Drain`` is what submitit calls.  It starts this file as a program, the runner, which reads what is to be done from its
standard input and ends at once when that is closed: when the job was killed.  Signals of the cluster reach both.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paper_repro.base.errors import STOPPING, run_main

PATIENCE_SECONDS = 120.0
"""How long a job stays for cells that other jobs run: longer than a dead one's lease counts."""


@dataclass(frozen=True)
class Order:
    """Which cells."""

    artifact: str
    scale: str
    seeds: list[int] | None
    overrides: list[str]
    runs: str
    results: str
    fill: bool
    since: int | None = None
    """When it was given, ns on the file system of ``runs``: a cell that failed later is not run again."""


class Drain:
    """Runs an order; a job that has to leave is given it again, after the runner had ``save_seconds`` to save."""

    def __init__(self, order: Order, save_seconds: float) -> None:
        self.order, self.save_seconds = order, save_seconds

    def __call__(self) -> int:
        """Return the runner's exit code; RuntimeError: a signal ended it."""
        Path(self.order.runs, "slurm").mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGTERM, self._leave)  # cancelled, or preempted: SLURM itself requeues it then
        command = [sys.executable, "-P", "-m", "paper_repro.launchers.drain"]
        # SLURM sends its signals to every process of a job: those meant for this one would end the runner's.
        heard = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        signal.signal(signal.SIGUSR2, heard)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(self.order)).encode() + b"\n")
        self._process.stdin.flush()
        code = self._process.wait()
        if code < 0:
            raise RuntimeError(f"the runner was killed by signal {-code}")
        return code

    def checkpoint(self) -> Any:
        """Stop the runner, which saves; what submitit gives to the job when it runs again."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        return DelayedSubmission(Drain(self.order, self.save_seconds))

    def _leave(self, *_: object) -> None:
        self._stop()
        sys.exit(128 + signal.SIGTERM)

    def _stop(self) -> None:
        """Let the runner save.  A signal's handler may run inside the wait of ``__call__``, whose lock no second wait
        gets: so the system is asked, and the runner's exit code is left to that wait.
        """
        self._process.send_signal(signal.SIGINT)
        until = time.monotonic() + self.save_seconds
        with contextlib.suppress(ChildProcessError):  # its exit code was read
            while os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                if time.monotonic() > until:
                    self._process.kill()
                    return
                time.sleep(0.1)


def main(arguments: Sequence[str]) -> int:
    """Run the order on standard input; the first signal to stop is heard, later ones change nothing."""
    for name in STOPPING:
        signal.signal(name, _stop_once)
    order = Order(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_job, daemon=True).start()
    from paper_repro.cells import runner
    from paper_repro.tables import plan as plans
    from paper_repro.tables import spec

    plan = plans.make(spec.load(order.artifact), order.scale, order.seeds, order.overrides)
    runs = Path(order.runs)
    result = runner.run(
        plan.all_cells,
        runs,
        roots=[runs, Path(order.results)],
        fill=order.fill,
        patience=PATIENCE_SECONDS,
        since=order.since,
    )
    if result.fatal:
        print(f"error: {result.fatal}", file=sys.stderr)
    return result.exit_code


def _stop_once(*_: object) -> None:
    for name in STOPPING:
        signal.signal(name, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_job() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(run_main(main))
