"""Runs the cells of a plan that have no result yet: in jobs where that is possible, each cell exactly once."""

import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from paper_repro.base import identity
from paper_repro.base.errors import INTERRUPTED, check_started
from paper_repro.base.files import disk_refuses, read_code_state
from paper_repro.cells import leases, measurements, records
from paper_repro.cells.estimates import Estimate, count_here, estimate, slow_products
from paper_repro.cells.fork_server import ForkServer, WorkerProcess, uninterrupted
from paper_repro.cells.leases import LeasedError, is_free, lease_path
from paper_repro.cells.measurements import is_done, to_fill
from paper_repro.cells.planned import Job, PlannedCell, cards, jobs, on_gpu
from paper_repro.cells.progress import Display, RunningJob
from paper_repro.cells.records import disk_message, open_runs_folder, record_path, work_folder
from paper_repro.cells.tasks import FAILED, FINISHED, NODE_LOST, Outcome
from paper_repro.cells.workers import Memory, Workers

POLL_SECONDS = 0.25
ELSEWHERE_POLL_SECONDS = 2.0
ATTEMPTS = 2
"""How often a job is given to a worker before its cells count as failed (a worker may be killed from outside)."""
_CODE_CHANGED = (
    "the code has changed since this run began: results from now on count as uncommitted, and --publish refuses them; "
    "interrupt this run and begin it again"
)


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


def run(
    cells: Sequence[PlannedCell],
    runs: Path,
    stream: Any = None,
    *,
    roots: Sequence[Path] = (),
    fill: bool = False,
    again: bool = False,
    patience: float | None = None,
    since: int | None = None,
) -> Result:
    """Run every cell that has no result in ``runs``, and let probes measure that have not measured yet.

    Before, every config is checked and its cost is estimated; UsageError: one of them is wrong.

    Args:
        stream: where the progress is shown; None: the standard error.
        roots: folders of records from which times are estimated: the largest jobs go first.
        fill: probes, and tasks of cells without probes, measure again where a metric was not available.
        again: run anew what comes from other code or data than there is now (``measurements.changed``).
        patience: seconds to stay for cells that other runners run; None: until all is done.
        since: what was recorded after this time of the file system, in nanoseconds, is not run again; None: from now.
    """
    now = open_runs_folder(runs)
    missing = sorted({cell.missing for cell in cells if cell.missing})
    able = [cell for cell in cells if not cell.missing]
    changed = measurements.changed(runs, able) if again else {}
    done = ids_of_done(runs, able, fill) - changed.keys()
    for name in done:
        is_free(lease_path(runs, name))  # a worker may be killed right after its last record
    todo = []
    for job in jobs(able):
        if any(cell.id not in done for cell in job.cells):
            todo.append(job)
        elif len(job.cells) > 1:
            shutil.rmtree(work_folder(runs, [cell.id for cell in job.cells]), ignore_errors=True)
    interrupted, fatal = False, ""
    if todo:
        to_run = [cell for cell in able if cell.id not in done]
        configs = [cell.config for cell in to_run]
        for cell in to_run:
            check_started(cell.machine.get("nodes", 1))
        if slow := slow_products(configs[0]):
            print(slow, file=sys.stderr)
        with ForkServer(runs, configs) as server:
            count = partial(server.call, partial(count_here, devices=configs[0]))
            estimates = {cell.id: Estimate(None, 0.0) for cell in able} | estimate(to_run, roots, runs, count)
            measurements.set_aside(runs, changed)
            todo.sort(key=lambda job: -sum(estimates[cell.id].seconds for cell in job.cells))
            work = sum(one.seconds for one in estimates.values())
            with Display(len(able), done=len(done), work=work, stream=stream) as display:
                dispatcher = Dispatcher(runs, server, display, estimates, fill, patience, since or now)
                interrupted, fatal = dispatcher.run(todo)
    return Result(count_by_status(able, runs), missing, interrupted, fatal)


def ids_of_done(runs: Path, cells: Iterable[PlannedCell], fill: bool = False) -> set[str]:
    """Return the cells that have results below ``runs``; with ``fill`` those alone that have nothing to fill."""
    there = records.begun(runs)
    done = (cell for cell in cells if cell.id in there and is_done(runs, cell))
    return {cell.id for cell in done if not (fill and to_fill(runs, cell))}


def count_by_status(cells: Sequence[PlannedCell], runs: Path) -> dict[str, int]:
    """Return how many cells have results of each status, are not run, or not measured."""
    found = Counter[str]()
    for cell in cells:
        result = measurements.find(runs, cell)
        found["not run" if result is None else "not measured" if result.lacking else result.record.status] += 1
    return dict(found)


@dataclass(eq=False, kw_only=True)
class _Running(RunningJob):
    job: Job
    worker: WorkerProcess
    cards: list[str]
    """The GPUs that the worker sees; empty: all, or none."""
    over: bool = False
    """Whether the worker has told what became of the job."""
    memory: Memory | None = None


class Dispatcher:
    """Gives jobs to workers, and again after a worker crash; ``patience`` and ``since`` are those of ``run``."""

    def __init__(
        self,
        runs: Path,
        server: ForkServer,
        display: Display,
        estimates: Mapping[str, Estimate],
        fill: bool,
        patience: float | None,
        since: int,
    ) -> None:
        self._runs, self._server, self._display, self._estimates = runs, server, display, estimates
        self._fill, self._patience, self._since = fill, patience, since
        self._todo: list[Job] = []
        self._running = display.running = list[_Running]()
        self._elsewhere: list[Job] = []
        self._attempts = Counter[Job]()
        self._fatal, self._stopping, self._said_change = "", False, False
        self._looked, self._busy = 0.0, time.monotonic()

    def run(self, todo: Sequence[Job]) -> tuple[bool, str]:
        """Run jobs until none is left or the user stops it; whether it was stopped, and what made it give up.

        Jobs that measure time run alone, after all others.
        """
        workers = Workers.of(todo[0].cells[0].machine)
        for timed in (False, True):
            part = [job for job in todo if identity.is_timed(job.cells[0].config) is timed]
            interrupted = self._drain(part, Workers(1) if timed else workers)
            if interrupted or self._fatal:
                return interrupted, self._fatal
        return False, ""

    def _drain(self, todo: list[Job], workers: Workers) -> bool:
        self._todo, interrupted = todo, False
        while True:
            try:
                self._server.prepare()
                while self._running or (not (self._stopping or self._fatal) and (self._todo or self._elsewhere)):
                    self._turn(workers)
                return interrupted
            except OSError as error:
                if not disk_refuses(error):
                    raise
                if self._fatal:
                    self._kill()
                    return interrupted
                self._give_up(disk_message(error, self._runs))
            except KeyboardInterrupt:
                if interrupted:
                    self._kill()
                    return interrupted
                interrupted = True
                self._stop("stopping: saving what is running; Ctrl-C again to stop at once")

    def _kill(self) -> None:
        for running in self._running:
            running.worker.kill()

    def _turn(self, workers: Workers) -> None:
        if self._todo:
            steps = len(self._running) >= workers.count and all(running.step for running in self._running)
            memory = [running.memory for running in self._running]
            if workers.look(time.monotonic(), self._display.work_so_far, steps, memory):
                self._display.say(f"machine.workers=auto: {workers.count} at once from now on")
        while self._todo and not self._stopping and len(self._running) < workers.count:
            self._begin(self._todo.pop(0))
        self._look_elsewhere()
        waits = [each for running in self._running for each in running.worker.waits]
        wait(waits, POLL_SECONDS) if waits else time.sleep(POLL_SECONDS)
        for running in [*self._running]:
            with uninterrupted():
                self._hear(running)
        self._display.update()

    def _begin(self, job: Job) -> None:
        """Give a job to a worker, unless another runner has done it or is about to."""

        def is_open(cell: PlannedCell) -> bool:
            """Return whether a cell has no result, or is to be filled, and was not recorded since this run began."""
            try:
                recorded = record_path(self._runs, cell.id).stat().st_mtime_ns
            except OSError:
                return True
            return recorded <= self._since and (self._fill or not is_done(self._runs, cell))

        to_run = [cell for cell in job.cells if is_open(cell)]
        if not all(is_free(lease_path(self._runs, cell.id)) for cell in to_run):
            self._elsewhere.append(job)
            return
        if not to_run:
            return
        without = [cell for cell in job.cells if not is_done(self._runs, cell)]
        work = sum(self._estimates[cell.id].seconds for cell in without)
        costs = (self._estimates[cell.id].cost for cell in job.cells)
        cost = next(filter(None, costs), None)  # that of one is that of all
        chosen = self._free_cards(job.cells[0].machine)
        with uninterrupted():
            try:
                worker = self._server.start(cells=job.cells, fill=self._fill, cost=cost, cards=chosen)
            except (OSError, EOFError) as error:  # no memory, or too many processes
                self._try_again(job, f"it did not start: {type(error).__name__}: {error}")
                return
            running = _Running(job.label, len(without), work, job=job, worker=worker, cards=chosen)
            self._running.append(running)

    def _free_cards(self, machine: Mapping[str, Any]) -> list[str]:
        """Return the GPUs for a job that asks for a number of them: those with the fewest workers."""
        devices = machine.get("devices", 1)
        if not on_gpu(machine) or not isinstance(devices, int):
            return []
        loads = Counter(dict.fromkeys(cards(), 0))
        loads.update(card for running in self._running for card in running.cards)
        return sorted(loads, key=loads.__getitem__)[:devices] if len(loads) > devices else []

    def _hear(self, running: _Running) -> None:
        events, code = running.worker.hear()
        for event in events:
            kind = event["event"]
            if kind == "progress":
                running.step, running.steps, running.loss = event["step"], event["steps"], event["loss"]
                running.memory = event["memory"]
            elif kind == "done":
                running.cells = max(0, running.cells - 1)
                (cell,) = (cell for cell in running.job.cells if cell.id == event["cell"])
                self._note_done(cell, event["status"], event["note"])
            elif kind == "busy":
                running.over = True
                self._elsewhere.append(running.job)
            elif kind == "end":
                running.over = True
                self._display.work_done += running.work
            elif kind == "fatal":
                self._give_up(event["message"])
            elif kind == "code changed" and not self._said_change:
                self._said_change = True
                self._display.say(_CODE_CHANGED)
        if code is not None:
            self._running.remove(running)
            for cell in running.job.cells:
                is_free(lease_path(self._runs, cell.id))  # a process that was killed leaves the file
            if running.over or self._stopping:
                return
            if int(running.job.cells[0].machine.get("nodes") or 1) > 1:  # the other nodes end with it
                end = "a node was lost, see above" if code == NODE_LOST else "its process ended"
                self._give_up(f"{running.label}: {end}; start all nodes again, it goes on")
            else:
                self._try_again(running.job, f"its process ended ({running.worker.cause})")

    def _note_done(self, cell: PlannedCell, status: str, note: str) -> None:
        if status == FINISHED:
            self._display.done += 1
            return
        self._display.failed += 1
        self._display.say(f"{cell.name} (cell {cell.id}) {status}: {note}")

    def _try_again(self, job: Job, why: str) -> None:
        self._attempts[job] += 1
        if self._attempts[job] < ATTEMPTS:
            self._display.say(f"{job.label}: {why}; going on from its last checkpoint")
            self._todo.insert(0, job)
            return
        note = f"{why} for the second time; see {self._runs / 'logs'}"
        origin = records.provenance(records.device(job.cells[0].config), read_code_state())
        for cell in job.cells:
            if not is_done(self._runs, cell) and self._record_death(cell, note, origin):
                self._note_done(cell, FAILED, note)

    def _record_death(self, cell: PlannedCell, note: str, origin: Mapping[str, Any]) -> bool:
        """Record that a cell without a result has failed; whether no other runner has taken it meanwhile."""
        try:
            with leases.hold(self._runs, [cell.id]):
                found = records.find(self._runs, cell.id)
                if found is None or not found.done:
                    record = records.from_outcome(cell.id, cell.config, Outcome(FAILED, note=note), origin)
                    records.write(record_path(self._runs, cell.id), record)
                return not is_done(self._runs, cell)
        except LeasedError:
            return False

    def _look_elsewhere(self) -> None:
        """Look at the jobs that other runners hold: they may be done by now, or free again."""
        now = time.monotonic()
        if now - self._looked < ELSEWHERE_POLL_SECONDS:
            return
        self._looked = now
        looked, self._elsewhere = self._elsewhere, []
        for job in looked:
            if not all(is_free(lease_path(self._runs, cell.id)) for cell in job.cells):
                self._elsewhere.append(job)
            elif not all(is_done(self._runs, cell) for cell in job.cells):
                self._todo.append(job)
        if self._running or self._todo:
            self._busy = now
        if self._stopping or (self._patience is not None and now - self._busy > self._patience):
            self._elsewhere.clear()
        self._display.elsewhere = sum(len(job.cells) for job in self._elsewhere)

    def _give_up(self, why: str) -> None:
        self._fatal = why
        self._stop(why)

    def _stop(self, why: str) -> None:
        self._display.say(why)
        self._stopping = True
        self._todo.clear()
        self._elsewhere.clear()
        for running in self._running:
            running.worker.stop()
