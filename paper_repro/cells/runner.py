"""Runs the cells of a plan that have no result yet: in jobs where that is possible, each cell exactly once."""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from paper_repro.base import config as configs
from paper_repro.base import identity
from paper_repro.base.code_state import read_code_state
from paper_repro.base.errors import INTERRUPTED
from paper_repro.cells import measurements, records
from paper_repro.cells.disk import disk_message, disk_refuses, open_runs_folder
from paper_repro.cells.estimates import estimate
from paper_repro.cells.leases import clear, holder, lease_path
from paper_repro.cells.machine_section import check_machine
from paper_repro.cells.measurements import is_done, lacks_without_probes, to_fill
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.progress import Display, RunningJob, Sweep
from paper_repro.cells.records import record_path, work_folder
from paper_repro.cells.tasks import DIVERGED, FAILED, FINISHED, Outcome, task_of

POLL_SECONDS = 0.25
ELSEWHERE_POLL_SECONDS = 1.0
ATTEMPTS = 2
"""How often a job is given to a worker before its cells count as failed (a worker may be killed from outside)."""


@dataclass(frozen=True, eq=False)
class Job:
    """Cells that one worker runs together, in the order of the plan."""

    cells: tuple[PlannedCell, ...]

    @property
    def label(self) -> str:
        first = self.cells[0]
        shared = [value for axis, value in first.key if all((axis, value) in cell.key for cell in self.cells)]
        return " ".join(shared) or first.id[:8]


@dataclass
class Result:
    """What a call to ``run`` left behind."""

    by_status: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """Why cells could not be run at all (absent data)."""
    interrupted: bool = False
    fatal: str = ""

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        whole = not self.fatal and not self.missing and set(self.by_status) <= {FINISHED}
        return 0 if whole else 1


def jobs(cells: Sequence[PlannedCell]) -> list[Job]:
    """Group cells that differ only in what their config's ``machine.stack.over`` allows, at most ``most`` together.

    The grouping depends on the plan alone, not on what is already done, so that a cut-off job is found again.
    """
    groups: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        stack = cell.config.get(identity.MACHINE, {}).get("stack")
        shape = cell.id
        if stack:
            shape = identity.fingerprint(configs.without(cell.config, [identity.MACHINE, *stack["over"]]))
        groups.setdefault(shape, []).append(cell)
    result = []
    for members in groups.values():
        stack = members[0].config.get(identity.MACHINE, {}).get("stack") or {"most": 1}
        most = int(stack["most"])
        # Even shares: 20 cells at most 12 are 10 and 10, so that two workers end together.
        count = -(-len(members) // most)
        size = -(-len(members) // count)
        result += [Job(tuple(members[start : start + size])) for start in range(0, len(members), size)]
    return result


def run(
    cells: Sequence[PlannedCell],
    runs: Path,
    display_stream: Any = None,
    work: Mapping[str, float] | None = None,
    workers: int | None = None,
    fill: bool = False,
) -> Result:
    """Run every cell that has no result in ``runs``, and let probes measure that have not measured yet.

    Args:
        fill: probes, and tasks of cells without probes, measure again where a metric was not available.
        work: expected work of a cell by id, in any unit; the largest jobs go first and the ETA is weighed by it.
        workers: processes at a time; the config's ``machine.workers`` by default.

    Raises:
        UsageError: ``runs`` or the place of a record cannot be written to, or a machine section asks for what no
            machine can give.
    """
    for cell in cells:
        check_machine(cell.config)
    open_runs_folder(runs)
    for cell in cells:
        records.check_place(runs, cell.id)
    missing = sorted({cell.missing for cell in cells if cell.missing})
    able = [cell for cell in cells if not cell.missing]
    for cell in able if fill else ():
        if lacks_without_probes(runs, cell):
            record_path(runs, cell.id).unlink()
    done = {cell.id for cell in able if is_done(runs, cell) and not (fill and to_fill(runs, cell))}
    clear(runs, done)  # a worker may be killed right after its last record
    weights = {cell.id: (work or {}).get(cell.id, 1.0) for cell in able}
    todo = []
    for job in jobs(able):
        if any(cell.id not in done for cell in job.cells):
            todo.append(job)
        elif len(job.cells) > 1:
            shutil.rmtree(work_folder(runs, [cell.id for cell in job.cells]), ignore_errors=True)
    todo.sort(key=lambda job: -sum(weights[cell.id] for cell in job.cells))
    interrupted, fatal = False, ""
    if todo:
        sweep = Sweep(total=len(able), done=len(done))
        sweep.work_total = sum(weights[cell.id] for job in todo for cell in job.cells if cell.id not in done)
        count = workers or int(todo[0].cells[0].config.get(identity.MACHINE, {}).get("workers", 1))
        with Display(sweep, display_stream) as display:
            for timed, most in ((False, count), (True, 1)):  # what measures time runs alone, after all others
                part = [job for job in todo if identity.is_timed(job.cells[0].config) == timed]
                if part and not interrupted and not fatal:
                    pool = _Pool(runs, part, weights, sweep, display, min(most, len(part)), fill)
                    interrupted, fatal = pool.drain()
    by_status: dict[str, int] = {}
    for cell in able:
        result = measurements.find(runs, cell)
        status = "not run" if result is None else "not measured" if result.lacking else result.record.status
        by_status[status] = by_status.get(status, 0) + 1
    return Result(by_status, missing, interrupted, fatal)


class _WorkerProcess:
    """One worker and the job it is on."""

    def __init__(self, runs: Path, config: Mapping[str, Any]) -> None:
        # -P: what lies in the working folder is never imported in place of a library.
        command = [sys.executable, "-P", "-m", "paper_repro.cells.start_worker", "--runs", str(runs)]
        self.environment = _environment(config)
        logs = runs / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / f"worker-{os.getpid()}.txt").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        self.job: Job | None = None
        self.ended = False
        self._buffer = b""

    @property
    def pipe(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a worker that has died says so by its closed output
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def events(self) -> list[dict[str, Any]]:
        """Return the events that have arrived; an empty read means that the worker is gone."""
        content = os.read(self.pipe.fileno(), 65536)
        if not content:
            self.ended = True
        self._buffer += content
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def dismiss(self) -> None:
        """Let an idle worker go."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class _Pool:
    """Workers, the jobs still to be given out, and what is shown of them."""

    def __init__(
        self,
        runs: Path,
        todo: list[Job],
        weights: Mapping[str, float],
        sweep: Sweep,
        display: Display,
        count: int,
        fill: bool,
    ) -> None:
        self._runs, self._todo, self._weights, self._fill = runs, list(todo), weights, fill
        self._sweep, self._display, self._count = sweep, display, count
        self._selector = selectors.DefaultSelector()
        self._workers: list[_WorkerProcess] = []
        self._elsewhere: list[Job] = []
        self._attempts: dict[Job, int] = {}
        self._fatal = ""
        self._stopping = False
        self._last_look = 0.0

    def drain(self) -> tuple[bool, str]:
        """Run until nothing is left or the user stops it; whether it was stopped, and what made it give up."""
        interrupted = False
        while True:
            try:
                self._turn()
                if not self._workers and not (self._todo or self._elsewhere):
                    break
                if not self._workers and (self._stopping or self._fatal):
                    break
            except OSError as error:
                if not disk_refuses(error):
                    raise
                if self._fatal:
                    self._kill()
                    break
                self._fatal = disk_message(error, self._runs)
                self._stop(self._fatal)
            except KeyboardInterrupt:
                if interrupted:
                    self._kill()
                    break
                interrupted = True
                self._stop("stopping: saving what is running; Ctrl-C again to stop at once")
        for worker in self._workers:
            worker.process.wait()
        return interrupted, self._fatal

    def _turn(self) -> None:
        self._hand_out()
        self._look_elsewhere()
        for key, _ in self._selector.select(POLL_SECONDS):
            self._hear(key.data)
        self._display.update()

    def _hand_out(self) -> None:
        while self._todo and not self._stopping and len(self._workers) < self._count:
            worker = _WorkerProcess(self._runs, self._todo[0].cells[0].config)
            self._workers.append(worker)
            self._selector.register(worker.pipe, selectors.EVENT_READ, worker)
            self._give(worker)

    def _give(self, worker: _WorkerProcess) -> None:
        job = self._todo.pop(0)
        worker.job = job
        open_cells = [cell for cell in job.cells if not is_done(self._runs, cell)]
        work = sum(self._weights[cell.id] for cell in open_cells)
        self._sweep.running[id(worker)] = RunningJob(job.label, len(open_cells), work)
        cells = [{"id": cell.id, "config": cell.config} for cell in job.cells]
        worker.send({"cells": cells, "fill": self._fill})

    def _hear(self, worker: _WorkerProcess) -> None:
        for event in worker.events():
            kind = event["event"]
            job = self._sweep.running.get(id(worker))
            if kind == "progress" and job is not None:
                job.step, job.steps, job.loss = event["step"], event["steps"], event["loss"]
            elif kind == "done":
                self._note_done(event)
            elif kind == "busy":
                assert worker.job is not None
                self._elsewhere.append(worker.job)
                self._next(worker)
            elif kind == "end":
                if job is not None:
                    self._sweep.work_done += job.work
                self._next(worker)
            elif kind == "fatal":
                self._fatal = event["message"]
                self._stop(self._fatal)
        if worker.ended:
            self._bury(worker)

    def _note_done(self, event: Mapping[str, Any]) -> None:
        if event["status"] == FINISHED:
            self._sweep.done += 1
            return
        self._sweep.failed += 1
        noun = "diverged" if event["status"] == DIVERGED else event["status"]
        self._display.say(f"cell {event['cell']} {noun}: {event['note']}")

    def _next(self, worker: _WorkerProcess) -> None:
        """Give a free worker another job, or let it go; with other threads a job needs a worker of its own."""
        self._sweep.running.pop(id(worker), None)
        worker.job = None
        fits = self._todo and worker.environment == _environment(self._todo[0].cells[0].config)
        if fits and not self._stopping:
            self._give(worker)
        else:
            worker.dismiss()

    def _bury(self, worker: _WorkerProcess) -> None:
        self._selector.unregister(worker.pipe)
        self._workers.remove(worker)
        self._sweep.running.pop(id(worker), None)
        code = worker.process.wait()
        job = worker.job
        if job is None or self._stopping:
            return
        self._attempts[job] = self._attempts.get(job, 0) + 1
        if self._attempts[job] < ATTEMPTS:
            self._display.say(f"{job.label}: its process ended ({_cause(code)}); going on from its last checkpoint")
            self._todo.insert(0, job)
            return
        for cell in job.cells:
            found = records.find(self._runs, cell.id)
            if found is None or not found.done:  # a result outlives a probe that kills its process
                self._record_death(cell, code)

    def _record_death(self, cell: PlannedCell, code: int) -> None:
        note = f"its process ended twice ({_cause(code)}); see {self._runs / 'logs'}"
        outcome = Outcome(FAILED, note=note)
        origin = records.provenance(records.cpu_description(1), read_code_state())
        record = records.from_outcome(cell.id, cell.config, outcome, origin)
        records.write(record_path(self._runs, cell.id), record)
        self._note_done({"cell": cell.id, "status": FAILED, "note": note})

    def _look_elsewhere(self) -> None:
        """Look at jobs that another runner holds: they may be done by now, or free again."""
        if time.monotonic() - self._last_look < ELSEWHERE_POLL_SECONDS:
            return
        self._last_look = time.monotonic()
        waiting: list[Job] = []
        for job in self._elsewhere:
            open_cells = [cell for cell in job.cells if not is_done(self._runs, cell)]
            if not open_cells:
                continue
            if any(holder(lease_path(self._runs, cell.id)) for cell in open_cells):
                waiting.append(job)
            else:
                self._todo.append(job)
        self._elsewhere = [] if self._stopping else waiting
        self._sweep.elsewhere = sum(len(job.cells) for job in waiting)

    def _stop(self, why: str) -> None:
        self._display.say(why)
        self._stopping = True
        self._todo.clear()
        self._elsewhere.clear()
        for worker in self._workers:
            worker.send({"stop": True})

    def _kill(self) -> None:
        for worker in self._workers:
            worker.process.send_signal(signal.SIGKILL)


def _cause(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed by signal 9 (out of memory, or somebody killed it)"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _environment(config: Mapping[str, Any]) -> dict[str, str]:
    asked = config.get(identity.MACHINE, {}).get("threads", 1)
    if asked is None:
        return dict(os.environ)
    threads = str(asked)
    return {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


def run_cells(cells: Sequence[PlannedCell], runs: Path, roots: Sequence[Path], fill: bool = False) -> Result:
    """Check every config and estimate its cost (from the records below ``roots``), then run what has no result.

    Raises:
        UsageError: a config that cannot be built; nothing has been run.
    """
    open_runs_folder(runs)
    todo = [cell for cell in cells if not cell.missing and not is_done(runs, cell)]
    if todo:
        task_of(todo[0].config).check_devices(todo[0].config)
    work = {cell: item.seconds for cell, item in estimate(todo, roots).items()}
    return run(cells, runs, work=work, fill=fill)
