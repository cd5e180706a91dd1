"""Runs the cells of a plan that have no result yet: in jobs where that is possible, each cell exactly once."""

import contextlib
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paper_repro.base import identity
from paper_repro.base.errors import INTERRUPTED, check_started
from paper_repro.cells import changes, measurements, records
from paper_repro.cells.disk import open_runs_folder
from paper_repro.cells.display import Display
from paper_repro.cells.ended import Ended
from paper_repro.cells.estimates import Estimate, estimate, processor_flags, slow_products
from paper_repro.cells.jobs import Job, jobs
from paper_repro.cells.leases import clear
from paper_repro.cells.loggers import check_loggers
from paper_repro.cells.machine_section import check_machine
from paper_repro.cells.measurements import is_done, is_to_fill
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.pool import Pool
from paper_repro.cells.processes import Servers
from paper_repro.cells.progress import Sweep
from paper_repro.cells.records import work_folder
from paper_repro.cells.tasks import FINISHED


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


def run(
    cells: Sequence[PlannedCell],
    runs: Path,
    display_stream: Any = None,
    estimates: Mapping[str, Estimate] | None = None,
    servers: Servers | None = None,
    workers: int | None = None,
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
        workers: processes at a time; the config's ``machine.workers`` by default.
        share: with which cells to begin, where several runners begin at once.
        known: cells that were found to have results a moment ago; their records are not read again.

    Raises:
        UsageError: ``runs`` or the place of a record cannot be written to, or a machine section asks for what no
            machine can give.
    """
    for cell in cells:
        check_machine(cell.config)
    open_runs_folder(runs)
    records.check_places(runs, (cell.id for cell in cells if cell.id not in known))
    missing = sorted({cell.missing for cell in cells if cell.missing})
    able = [cell for cell in cells if not cell.missing]
    done = {*known} | _done(runs, [cell for cell in able if cell.id not in known])
    if fill:
        done -= {cell.id for cell in able if cell.id in done and is_to_fill(runs, cell)}
    # A worker may be killed right after its last record.
    clear(runs, (cell.id for cell in share.of(able) if cell.id in done))
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
        count = workers or int(todo[0].cells[0].config.get(identity.MACHINE, {}).get("workers", 1))
        ended = Ended(runs, share.since) if share.count > 1 else None
        with (
            contextlib.nullcontext(servers) if servers else Servers(runs) as own,
            Display(sweep, display_stream) as display,
        ):
            for timed, most in ((False, count), (True, 1)):  # what measures time runs alone, after all others
                part = [job for job in todo if identity.is_timed(job.cells[0].config) == timed]
                if part and not interrupted and not fatal:
                    places = min(most, len(part))
                    pool = Pool(runs, own, part, expected, sweep, display, places, fill, share.patience, ended)
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
        again: run anew what comes from other code or data than there is now (``cells.changes``).

    Raises:
        UsageError: a config that cannot be built, or a logger that is not installed or lacks its key; nothing has been
            run.
    """
    open_runs_folder(runs)
    able = [cell for cell in cells if not cell.missing]
    changed = changes.changed(runs, able) if again else {}
    done = _done(runs, able) - changed.keys()
    todo = [cell for cell in able if cell.id not in done]
    check_loggers(cell.config for cell in todo)
    for cell in todo:
        check_started((cell.config.get(identity.MACHINE) or {}).get("nodes", 1))
    if todo and (slow := slow_products(todo[0].config, processor_flags())):
        print(slow, file=sys.stderr)
    with Servers(runs) as servers:
        estimates = estimate(todo, roots, servers.counting(todo[0].config), runs) if todo else {}
        changes.set_aside(runs, changed)
        return run(cells, runs, estimates=estimates, servers=servers, fill=fill, share=share, known=done)
