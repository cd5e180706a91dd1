"""Jobs on their way: given to workers, heard of, and given again where a worker died."""

import math
import os
import selectors
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paper_repro.base.files import disk_refuses, read_code_state
from paper_repro.base.identity import MACHINE
from paper_repro.cells import records
from paper_repro.cells.disk import disk_message
from paper_repro.cells.display import Display
from paper_repro.cells.ended import Ended
from paper_repro.cells.estimates import Estimate
from paper_repro.cells.jobs import Job
from paper_repro.cells.leases import LeasedError, Leases, freed, lease_path
from paper_repro.cells.machine_section import on_gpu
from paper_repro.cells.measurements import is_done
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.processes import ServerProcess, Servers, WorkerProcess
from paper_repro.cells.progress import RunningJob, Sweep
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import DIVERGED, FAILED, FINISHED, NODE_LOST, Outcome

POLL_SECONDS = 0.25
ELSEWHERE_POLL_SECONDS = 1.0
ELSEWHERE_JOBS = 4
"""How many jobs that others hold are looked at in each poll: one while all workers are busy, more where a round would
take too long."""
ROUND_SECONDS = 30.0
"""The longest between two looks at a job that another runner holds."""
_END_OF_NODES = ("its process ended", "a node was lost, see above")
_CODE_CHANGED = (
    "the code has changed since this run began: results from now on count as uncommitted, and --publish refuses them; "
    "interrupt this run and begin it again"
)
_ABSENT = -1
"""The stamp of a cell without a record."""
ATTEMPTS = 2
"""How often a job is given to a worker before its cells count as failed (a worker may be killed from outside)."""


@dataclass(eq=False)
class _Running:
    """A job and its worker."""

    job: Job
    worker: WorkerProcess
    over: bool = False
    """Whether the worker has told what became of the job."""


class Pool:
    """Workers, the jobs still to be given out, and what is shown of them.

    Args:
        patience: for how many seconds it waits, with nothing to do, for cells that others run; None: until they have
            results.
        ended: what several runners tell each other; None: this one is alone.
    """

    def __init__(
        self,
        runs: Path,
        servers: Servers,
        todo: list[Job],
        estimates: Mapping[str, Estimate],
        sweep: Sweep,
        display: Display,
        count: int,
        fill: bool,
        patience: float | None = None,
        ended: Ended | None = None,
    ) -> None:
        self._runs, self._servers, self._fill = runs, servers, fill
        self._todo, self._estimates = list(todo), estimates
        self._names = {cell.id: cell.name for job in todo for cell in job.cells}
        self._sweep, self._display, self._count = sweep, display, count
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, _Running] = {}
        """By the worker's number."""
        self._elsewhere: list[Job] = []
        self._attempts: dict[Job, int] = {}
        self._fatal = ""
        self._stopping = False
        self._last_look = 0.0
        there = records.begun(runs)
        self._stamps = {
            cell.id: self._stamp(cell) if cell.id in there else _ABSENT for job in todo for cell in job.cells
        }
        self._patience, self._busy_at, self._ended = patience, time.monotonic(), ended

    def drain(self) -> tuple[bool, str]:
        """Run until nothing is left or the user stops it; whether it was stopped, and what made it give up."""
        interrupted = False
        while True:
            try:
                while self._running or (not (self._stopping or self._fatal) and (self._todo or self._elsewhere)):
                    self._turn()
                break
            except OSError as error:
                if not disk_refuses(error):
                    raise
                if self._fatal:
                    self._servers.kill()
                    break
                self._fatal = disk_message(error, self._runs)
                self._stop(self._fatal)
            except KeyboardInterrupt:
                if interrupted:
                    self._servers.kill()
                    break
                interrupted = True
                self._stop("stopping: saving what is running; Ctrl-C again to stop at once")
        self._selector.close()
        return interrupted, self._fatal

    def _turn(self) -> None:
        while self._todo and not self._stopping and len(self._running) < self._count:
            self._begin(self._todo.pop(0))
        self._look_elsewhere()
        for key, _ in self._selector.select(POLL_SECONDS):
            if key.fd in self._selector.get_map():  # those heard before may have let it go
                key.data()
        self._display.update()

    def _begin(self, job: Job) -> None:
        """Give a job to a worker, unless another runner has done it or is about to."""
        open_cells = [cell for cell in job.cells if self._is_open(cell)]
        if not all(freed(lease_path(self._runs, cell.id)) for cell in open_cells):
            self._elsewhere.append(job)
        elif open_cells:
            self._give(job)

    def _is_open(self, cell: PlannedCell) -> bool:
        """Return whether a cell has no result, or is to be filled, and no other runner has recorded it since this one
        began.
        """
        if self._ended is not None and self._ended.knows(cell.id):
            return False
        stamp = self._stamp(cell)
        return stamp == self._stamps[cell.id] and (stamp == _ABSENT or self._fill or not is_done(self._runs, cell))

    def _stamp(self, cell: PlannedCell) -> int:
        try:
            return record_path(self._runs, cell.id).stat().st_mtime_ns
        except OSError:
            return _ABSENT

    def _give(self, job: Job) -> None:
        server = self._servers.of(job.cells[0].config)
        open_cells = [cell for cell in job.cells if not is_done(self._runs, cell)]
        work = sum(self._estimates[cell.id].seconds for cell in open_cells)
        cells = [{"id": cell.id, "config": cell.config} for cell in job.cells]
        costs = (self._estimates[cell.id].cost for cell in job.cells)
        cost = next((asdict(found) for found in costs if found), None)  # that of one is that of all
        worker = server.fork(cells=cells, fill=self._fill, cost=cost)
        running = self._running[worker.number] = _Running(job, worker)
        self._sweep.running[worker.number] = RunningJob(job.label, len(open_cells), work)
        self._selector.register(worker.pipe, selectors.EVENT_READ, partial(self._hear, running))
        if server.socket not in self._selector.get_map():
            self._selector.register(server.socket, selectors.EVENT_READ, partial(self._hear_server, server))

    def _hear(self, running: _Running) -> None:
        shown = self._sweep.running[running.worker.number]
        for event in running.worker.events():
            kind = event["event"]
            if kind == "progress":
                shown.reach(event["step"], event["steps"], event["loss"])
            elif kind == "done":
                shown.cells = max(0, shown.cells - 1)
                self._note_done(event)
            elif kind == "busy":
                running.over = True
                self._elsewhere.append(running.job)
            elif kind == "end":
                running.over = True
                self._sweep.work_done += shown.work
            elif kind == "fatal":
                self._fatal = event["message"]
                self._stop(self._fatal)
        if running.worker.silent:
            self._selector.unregister(running.worker.pipe)

    def _note_done(self, event: Mapping[str, Any]) -> None:
        if self._ended is not None:
            self._ended.add(event["cell"])
        if event["status"] == FINISHED:
            self._sweep.done += 1
            return
        self._sweep.failed += 1
        noun = "diverged" if event["status"] == DIVERGED else event["status"]
        name = self._names.get(event["cell"], "")
        self._display.say(f"{name} (cell {event['cell']}) {noun}: {event['note']}")

    def _hear_server(self, server: ServerProcess) -> None:
        known, ended = server.code_changed, server.hear()
        if server.code_changed and not known:
            self._display.say(_CODE_CHANGED)
        for worker in ended:
            running = self._running[worker.number]
            if not worker.silent:
                self._hear(running)
            self._bury(running)
        if server.ended:
            self._selector.unregister(server.socket)
            self._servers.forget(server)

    def _bury(self, running: _Running) -> None:
        worker, job = running.worker, running.job
        del self._running[worker.number], self._sweep.running[worker.number]
        if not worker.silent:
            self._selector.unregister(worker.pipe)
        os.close(worker.pipe)
        if running.over or self._stopping:
            return
        if worker.code is None:
            self._todo.insert(0, job)
            return
        if int(job.cells[0].config.get(MACHINE, {}).get("nodes") or 1) > 1:  # the other nodes end with it
            self._fatal = f"{job.label}: {_END_OF_NODES[worker.code == NODE_LOST]}; start all nodes again, it goes on"
            self._stop(self._fatal)
            return
        self._attempts[job] = self._attempts.get(job, 0) + 1
        if self._attempts[job] < ATTEMPTS:
            self._display.say(f"{job.label}: its process ended ({worker.cause}); going on from its last checkpoint")
            self._todo.insert(0, job)
            return
        note = f"its process ended twice ({worker.cause}); see {self._runs / 'logs'}"
        origin = records.provenance(_device(job.cells[0].config), read_code_state())
        for cell in job.cells:
            if not is_done(self._runs, cell) and self._record_death(cell, note, origin):
                self._note_done({"cell": cell.id, "status": FAILED, "note": note})

    def _record_death(self, cell: PlannedCell, note: str, origin: Mapping[str, Any]) -> bool:
        """Record that a cell has failed, where it has no result: one outlives a probe that kills its process.

        Returns:
            Whether no other runner has taken the cell meanwhile.
        """
        try:
            with Leases(self._runs).hold([cell.id]):
                found = records.find(self._runs, cell.id)
                if found is None or not found.done:
                    record = records.from_outcome(cell.id, cell.config, Outcome(FAILED, note=note), origin)
                    records.write(record_path(self._runs, cell.id), record)
                return not is_done(self._runs, cell)
        except LeasedError:
            return False

    def _look_elsewhere(self) -> None:
        """Look at some of the jobs that other runners hold: they may be done by now, or free again.

        Each of many runners may wait for what all others hold, so each looks at a few in turn.
        """
        if time.monotonic() - self._last_look < ELSEWHERE_POLL_SECONDS:
            return
        self._last_look = time.monotonic()
        least = 1 if len(self._running) == self._count else ELSEWHERE_JOBS
        count = max(least, math.ceil(len(self._elsewhere) * ELSEWHERE_POLL_SECONDS / ROUND_SECONDS))
        looked, self._elsewhere = self._elsewhere[:count], self._elsewhere[count:]
        for job in looked:
            if not all(freed(lease_path(self._runs, cell.id)) for cell in job.cells):
                self._elsewhere.append(job)
            elif not all(is_done(self._runs, cell) for cell in job.cells):
                self._todo.append(job)
        now = time.monotonic()
        self._busy_at = now if self._running or self._todo else self._busy_at
        tired = self._patience is not None and now - self._busy_at > self._patience
        if self._stopping or tired:
            self._elsewhere.clear()
        self._sweep.elsewhere = sum(len(job.cells) for job in self._elsewhere)

    def _stop(self, why: str) -> None:
        self._display.say(why)
        self._stopping = True
        self._todo.clear()
        self._elsewhere.clear()
        self._servers.stop()


def _device(config: Mapping[str, Any]) -> str:
    """Return the device of a process that ended, as far as this one, which has no torch, can name it."""
    machine = config.get(MACHINE) or {}
    return "a GPU" if on_gpu(machine) else records.cpu_description(int(machine.get("threads") or os.cpu_count() or 1))
