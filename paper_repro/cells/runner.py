"""Runs the cells of a plan that have no result yet: in jobs where that is possible, each cell exactly once."""

import contextlib
import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from paper_repro.base import identity
from paper_repro.base.errors import INTERRUPTED, check_started
from paper_repro.base.files import disk_refuses, read_code_state
from paper_repro.base.identity import MACHINE
from paper_repro.cells import measurements, records
from paper_repro.cells.estimates import Estimate, estimate, processor_flags, slow_products
from paper_repro.cells.fork_server import ServerProcess, Servers, uninterrupted
from paper_repro.cells.leases import LeasedError, Leases, freed, lease_path
from paper_repro.cells.measurements import is_done, is_to_fill
from paper_repro.cells.planned import Job, PlannedCell, cards, check_loggers, jobs, on_gpu
from paper_repro.cells.progress import Display, RunningJob, Sweep
from paper_repro.cells.records import disk_message, open_runs_folder, record_path, work_folder
from paper_repro.cells.tasks import DIVERGED, FAILED, FINISHED, NODE_LOST, Outcome

POLL_SECONDS = 0.25
ELSEWHERE_POLL_SECONDS = 1.0
ELSEWHERE_JOBS = 4
"""How many jobs that others hold are looked at in each poll: more where a round would take too long."""
ROUND_SECONDS = 30.0
"""The longest between two looks at a job that another runner holds."""
ATTEMPTS = 2
"""How often a job is given to a worker before its cells count as failed (a worker may be killed from outside)."""
_END_OF_NODES = ("its process ended", "a node was lost, see above")
_CODE_CHANGED = (
    "the code has changed since this run began: results from now on count as uncommitted, and --publish refuses them; "
    "interrupt this run and begin it again"
)
_ABSENT = -1
"""The time of the record of a cell that has none."""


@dataclass(frozen=True)
class Share:
    """What one of several runners of the same cells begins with, and how long it stays for what the others run."""

    index: int = 0
    count: int = 1
    patience: float | None = None
    """Seconds; None: until all is done."""
    since: int | None = None
    """What was recorded after this time of the file system, in nanoseconds, is not run again; None: after the runner
    began."""

    def first(self, jobs: list[Job]) -> list[Job]:
        """Return every ``count``-th job from ``index`` on, then the others from there on."""
        return [job for turn in range(self.count) for job in jobs[(self.index + turn) % self.count :: self.count]]

    def of(self, cells: Sequence[PlannedCell]) -> Sequence[PlannedCell]:
        """Return every ``count``-th cell: those that this runner looks after where one of all is enough."""
        return cells[self.index :: self.count]


WHOLE = Share()


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


def run_cells(
    cells: Sequence[PlannedCell],
    runs: Path,
    roots: Sequence[Path],
    fill: bool = False,
    share: Share = WHOLE,
    again: bool = False,
) -> Result:
    """Check every config and estimate its cost (from the records below ``roots``), then run what has no result.

    Args:
        again: run anew what comes from other code or data than there is now (``measurements.changed``).

    Raises:
        UsageError: a config that cannot be built, or a logger that is not installed or lacks its key; nothing has been
            run.
    """
    open_runs_folder(runs)
    able = [cell for cell in cells if not cell.missing]
    changed = measurements.changed(runs, able) if again else {}
    done = _done(runs, able) - changed.keys()
    todo = [cell for cell in able if cell.id not in done]
    check_loggers(cell.config for cell in todo)
    for cell in todo:
        check_started((cell.config.get(MACHINE) or {}).get("nodes", 1))
    if todo and (slow := slow_products(todo[0].config, processor_flags())):
        print(slow, file=sys.stderr)
    with Servers(runs) as servers:
        estimates = estimate(todo, roots, partial(servers.count, devices=todo[0].config), runs) if todo else {}
        measurements.set_aside(runs, changed)
        return run(cells, runs, estimates=estimates, servers=servers, fill=fill, share=share, known=done)


def run(
    cells: Sequence[PlannedCell],
    runs: Path,
    display_stream: Any = None,
    estimates: Mapping[str, Estimate] | None = None,
    servers: Servers | None = None,
    fill: bool = False,
    share: Share = WHOLE,
    known: Collection[str] = (),
) -> Result:
    """Run every cell that has no result in ``runs``, and let probes measure that have not measured yet.

    Of several runners each counts its own share of the cells in what it returns.

    Args:
        fill: probes, and tasks of cells without probes, measure again where a metric was not available.
        estimates: what a cell is expected to cost, by id; the largest jobs go first and the ETA is weighed by it.
        servers: those that may be running already; they are not ended.
        share: with which cells to begin, where several runners begin at once.
        known: cells that were found to have results a moment ago; their records are not read again.

    Raises:
        UsageError: ``runs`` cannot be written to.
    """
    open_runs_folder(runs)
    missing = sorted({cell.missing for cell in cells if cell.missing})
    able = [cell for cell in cells if not cell.missing]
    done = {*known} | _done(runs, [cell for cell in able if cell.id not in known])
    if fill:
        done -= {cell.id for cell in able if cell.id in done and is_to_fill(runs, cell)}
    for cell in share.of(able):
        if cell.id in done:
            freed(lease_path(runs, cell.id))  # a worker may be killed right after its last record
    expected = {cell.id: (estimates or {}).get(cell.id, Estimate(None, 1.0)) for cell in able}
    todo = []
    for number, job in enumerate(jobs(able)):
        if any(cell.id not in done for cell in job.cells):
            todo.append(job)
        elif len(job.cells) > 1 and number % share.count == share.index:
            shutil.rmtree(work_folder(runs, [cell.id for cell in job.cells]), ignore_errors=True)
    todo.sort(key=lambda job: -sum(expected[cell.id].seconds for cell in job.cells))
    todo = share.first(todo)
    interrupted, fatal = False, ""
    if todo:
        sweep = Sweep(total=len(able), done=len(done))
        sweep.work_total = sum(expected[cell.id].seconds for job in todo for cell in job.cells if cell.id not in done)
        count = int(todo[0].cells[0].config.get(MACHINE, {}).get("workers", 1))
        with (
            contextlib.nullcontext(servers) if servers else Servers(runs) as own,
            Display(sweep, display_stream) as display,
        ):
            for timed, most in ((False, count), (True, 1)):  # what measures time runs alone, after all others
                part = [job for job in todo if identity.is_timed(job.cells[0].config) == timed]
                if part and not interrupted and not fatal:
                    pool = Pool(runs, own, part, expected, sweep, display, min(most, len(part)), fill, share)
                    interrupted, fatal = pool.drain()
    return Result(count_by_status(share.of(able), runs), missing, interrupted, fatal)


def _done(runs: Path, cells: Sequence[PlannedCell]) -> set[str]:
    there = records.begun(runs)
    return {cell.id for cell in cells if cell.id in there and is_done(runs, cell)}


def count_by_status(cells: Sequence[PlannedCell], runs: Path) -> dict[str, int]:
    """Return how many cells have results of each status, are not run, or not measured."""
    found: dict[str, int] = {}
    for cell in cells:
        result = measurements.find(runs, cell)
        status = "not run" if result is None else "not measured" if result.lacking else result.record.status
        found[status] = found.get(status, 0) + 1
    return found


@dataclass(eq=False)
class _Running:
    """A job that a worker has."""

    job: Job
    cards: list[str]
    """The GPUs that the worker sees; empty: all, or none."""
    over: bool = False
    """Whether the worker has told what became of the job."""


class Pool:
    """Jobs on their way: given to ``count`` workers, heard of, and given again where a worker died.

    Args:
        share: how long it waits, with nothing to do, for cells that others run, and which records are new.
    """

    def __init__(
        self,
        runs: Path,
        servers: Servers,
        todo: Sequence[Job],
        estimates: Mapping[str, Estimate],
        sweep: Sweep,
        display: Display,
        count: int,
        fill: bool,
        share: Share,
    ) -> None:
        self._runs, self._servers, self._fill, self._share = runs, servers, fill, share
        self._todo, self._estimates = list(todo), estimates
        self._names = {cell.id: cell.name for job in todo for cell in job.cells}
        self._sweep, self._display, self._count = sweep, display, count
        self._running: dict[int, _Running] = {}
        """By the worker's number."""
        self._elsewhere: list[Job] = []
        self._attempts: dict[Job, int] = {}
        self._fatal = ""
        self._stopping = False
        self._looked, self._busy = 0.0, time.monotonic()
        there = records.begun(runs)
        self._recorded = {
            cell.id: self._time(cell) if cell.id in there else _ABSENT for job in todo for cell in job.cells
        }

    def drain(self) -> tuple[bool, str]:
        """Run until nothing is left or the user stops it; whether it was stopped, and what made it give up."""
        interrupted = False
        while True:
            try:
                while self._running or (not (self._stopping or self._fatal) and (self._todo or self._elsewhere)):
                    self._turn()
                return interrupted, self._fatal
            except OSError as error:
                if not disk_refuses(error):
                    raise
                if self._fatal:
                    self._servers.kill()
                    return interrupted, self._fatal
                self._give_up(disk_message(error, self._runs))
            except KeyboardInterrupt:
                if interrupted:
                    self._servers.kill()
                    return interrupted, self._fatal
                interrupted = True
                self._stop("stopping: saving what is running; Ctrl-C again to stop at once")

    def _turn(self) -> None:
        while self._todo and not self._stopping and len(self._running) < self._count:
            self._begin(self._todo.pop(0))
        self._look_elsewhere()
        ready = wait([server.connection for server in self._servers.started], POLL_SECONDS)
        for server in [each for each in self._servers.started if each.connection in ready]:
            with uninterrupted():
                self._hear(server)
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
        recorded = self._time(cell)
        if recorded != self._recorded[cell.id] or recorded > (self._share.since or math.inf):
            return False
        return recorded == _ABSENT or self._fill or not is_done(self._runs, cell)

    def _time(self, cell: PlannedCell) -> int:
        """Return when a cell was recorded."""
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
        cost = next(filter(None, costs), None)  # that of one is that of all
        chosen = self._free_cards(job.cells[0].config.get(MACHINE) or {})
        with uninterrupted():
            worker = server.fork(cells=cells, fill=self._fill, cost=cost, cards=chosen)
            self._running[worker] = _Running(job, chosen)
            self._sweep.running[worker] = RunningJob(job.label, len(open_cells), work)

    def _free_cards(self, machine: Mapping[str, Any]) -> list[str]:
        """Return the GPUs for a job that asks for a number of them: those with the fewest workers."""
        devices = machine.get("devices", 1)
        if not on_gpu(machine) or not isinstance(devices, int):
            return []
        loads = Counter(dict.fromkeys(cards(), 0))
        loads.update(card for running in self._running.values() for card in running.cards)
        return sorted(loads, key=loads.__getitem__)[:devices] if len(loads) > devices else []

    def _hear(self, server: ServerProcess) -> None:
        for event in server.hear():
            worker, kind = event["worker"], event["event"]
            if worker is None:
                self._display.say(_CODE_CHANGED)
                continue
            running, shown = self._running[worker], self._sweep.running[worker]
            if kind == "progress":
                shown.reach(event["step"], event["steps"], event["loss"])
            elif kind == "done":
                shown.cells = max(0, shown.cells - 1)
                self._note_done(event["cell"], event["status"], event["note"])
            elif kind == "busy":
                running.over = True
                self._elsewhere.append(running.job)
            elif kind == "end":
                running.over = True
                self._sweep.work_done += shown.work
            elif kind == "fatal":
                self._give_up(event["message"])
            elif kind == "ended":
                del self._running[worker], self._sweep.running[worker]
                for cell in running.job.cells:
                    freed(lease_path(self._runs, cell.id))  # a process that was killed leaves the file
                if not running.over and not self._stopping:
                    self._bury(running.job, event["code"], event["cause"])
        if server.ended:
            self._servers.forget(server)

    def _note_done(self, cell: str, status: str, note: str) -> None:
        if status == FINISHED:
            self._sweep.done += 1
            return
        self._sweep.failed += 1
        self._display.say(f"{self._names[cell]} (cell {cell}) {'diverged' if status == DIVERGED else status}: {note}")

    def _bury(self, job: Job, code: int | None, cause: str) -> None:
        """Give a job again whose worker died, or record that its cells have failed."""
        if code is None:
            self._todo.insert(0, job)
            return
        if int(job.cells[0].config.get(MACHINE, {}).get("nodes") or 1) > 1:  # the other nodes end with it
            end = _END_OF_NODES[code == NODE_LOST]
            self._give_up(f"{job.label}: {end}; start all nodes again, it goes on")
            return
        self._attempts[job] = self._attempts.get(job, 0) + 1
        if self._attempts[job] < ATTEMPTS:
            self._display.say(f"{job.label}: its process ended ({cause}); going on from its last checkpoint")
            self._todo.insert(0, job)
            return
        note = f"its process ended twice ({cause}); see {self._runs / 'logs'}"
        origin = records.provenance(records.device(job.cells[0].config), read_code_state())
        for cell in job.cells:
            if not is_done(self._runs, cell) and self._record_death(cell, note, origin):
                self._note_done(cell.id, FAILED, note)

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
        now = time.monotonic()
        if now - self._looked < ELSEWHERE_POLL_SECONDS:
            return
        self._looked = now
        count = max(ELSEWHERE_JOBS, math.ceil(len(self._elsewhere) * ELSEWHERE_POLL_SECONDS / ROUND_SECONDS))
        looked, self._elsewhere = self._elsewhere[:count], self._elsewhere[count:]
        for job in looked:
            if not all(freed(lease_path(self._runs, cell.id)) for cell in job.cells):
                self._elsewhere.append(job)
            elif not all(is_done(self._runs, cell) for cell in job.cells):
                self._todo.append(job)
        if self._running or self._todo:
            self._busy = now
        if self._stopping or (self._share.patience is not None and now - self._busy > self._share.patience):
            self._elsewhere.clear()
        self._sweep.elsewhere = sum(len(job.cells) for job in self._elsewhere)

    def _give_up(self, why: str) -> None:
        self._fatal = why
        self._stop(why)

    def _stop(self, why: str) -> None:
        self._display.say(why)
        self._stopping = True
        self._todo.clear()
        self._elsewhere.clear()
        self._servers.stop()
