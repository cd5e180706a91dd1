"""A sweep on SLURM: an array of jobs that share its cells by leases, watched from the login node."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from paper_repro.base.errors import UsageError
from paper_repro.base.files import locked, sha256_of_bytes, write_atomically
from paper_repro.cells.leases import holder, lease_path
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import begun, open_runs_folder
from paper_repro.cells.runner import Result, count_by_status, ids_of_done
from paper_repro.cells.workers import first_count
from paper_repro.launchers.drain import Drain, Order
from paper_repro.launchers.start import Slurm

LOOK_SECONDS = 2.0
SAY_SECONDS = 30.0
UNHEARD_SECONDS = 300.0
"""How long SLURM's controller may be silent before watching ends."""
_LOG_LINES = 5
_ELSEWHERE = "log in to a node of the cluster, or leave launcher out to run the cells on this computer"


class Sweep:
    """The cells of an artifact at a scale, and the order of its jobs; all nodes share its ``runs``."""

    def __init__(self, cells: Sequence[PlannedCell], order: Order) -> None:
        self.cells, self.order, self.runs = cells, order, Path(order.runs)
        self.able = [cell for cell in cells if not cell.missing]
        self.folder = self.runs / "slurm" / f"{order.artifact.replace('/', '-')}-{order.scale}"
        words = json.dumps([order.seeds, order.overrides, order.fill])
        self.job = self.folder / f"job-{sha256_of_bytes(words.encode())[:8]}"
        """The file with the number of the last array of these cells: those of other seeds and overrides have others."""

    def left(self, cells: Sequence[PlannedCell] | None = None) -> list[PlannedCell]:
        """Return those of some cells, or of all that can be run, that have no result, or are to be filled."""
        asked = self.able if cells is None else cells
        done = ids_of_done(self.runs, asked, self.order.fill)
        return [cell for cell in asked if cell.id not in done]


def run(sweep: Sweep, slurm: Slurm, stream: TextIO = sys.stderr) -> Result:
    """Submit jobs for the cells without results, unless some are there already, and watch them to the end.

    Ctrl-C ends the watching alone; the same command goes on with it.  UsageError: SLURM is missing or refuses the jobs.
    """
    nodes = max(int(cell.machine.get("nodes", 1)) for cell in sweep.cells)
    if nodes > 1:
        raise UsageError(
            f"machine.nodes={nodes} does not go with launcher=slurm, whose jobs are one task on one node each: give "
            f"machine.nodes=1, or leave launcher out and start the command with srun --nodes={nodes} "
            "--ntasks-per-node=DEVICES"
        )
    _check_commands()
    open_runs_folder(sweep.runs)
    sweep.folder.mkdir(parents=True, exist_ok=True)
    missing = sorted({cell.missing for cell in sweep.cells if cell.missing})
    interrupted, fatal = False, ""
    if sweep.left():
        with locked(sweep.folder / ".lock"):
            number = _last(sweep)
            if number:
                print(f"job {number} is there already and is watched; scancel {number} ends it", file=stream)
            else:
                number = _submit(sweep, slurm)
                print(f"job {number}: {slurm.jobs} task(s); Ctrl-C leaves them running", file=stream)
        try:
            fatal = _watch(sweep, number, stream)
        except KeyboardInterrupt:
            interrupted = True
            print(f"job {number} goes on; the same command watches it again, scancel {number} ends it", file=stream)
    return Result(count_by_status(sweep.able, sweep.runs), missing, interrupted, fatal)


# Submitting.


def _check_commands() -> None:
    for command in ("sbatch", "srun", "squeue", "scancel"):
        if shutil.which(command) is None:
            raise UsageError(f"launcher=slurm: there is no {command} on {socket.gethostname()}: {_ELSEWHERE}")
    if find_spec("submitit") is None:
        raise UsageError("launcher=slurm needs submitit: pip install submitit (or pip install -e '.[slurm]')")


def _submit(sweep: Sweep, slurm: Slurm) -> str:
    import submitit

    machine = sweep.cells[0].machine
    wanted = {name: getattr(slurm, name) for name in ("partition", "account", "qos", "constraint")}
    wanted |= {"gpus_per_node": slurm.gpus, "mem": slurm.memory_gb and f"{slurm.memory_gb}GB"}
    executor = submitit.SlurmExecutor(sweep.folder, max_num_timeout=10**6)
    executor.update_parameters(
        job_name=f"{sweep.order.artifact}-{sweep.order.scale}",
        time=slurm.minutes,
        cpus_per_task=slurm.cpus or first_count(machine, slurm.gpus or 0) * int(machine.get("threads") or 1),
        signal_delay_s=slurm.grace,
        additional_parameters={"requeue": True},
        **{key: value for key, value in wanted.items() if value is not None},
    )
    save = max(1.0, slurm.grace - 30.0) if slurm.grace > 60 else slurm.grace / 2
    order = replace(sweep.order, since=open_runs_folder(sweep.runs))
    try:
        jobs = executor.submit_array([Drain(order, save)] * slurm.jobs)
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        raise UsageError(f"SLURM refuses the jobs: {' '.join(str(error).split())}") from error
    number: str = jobs[0].job_id.partition("_")[0]
    write_atomically(sweep.job, number.encode())
    return number


def _last(sweep: Sweep) -> str:
    """Return the number of the sweep's last array, or nothing where none of its tasks is left."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        number = sweep.job.read_text()
        if number.isdigit() and _states(number):
            return number
    return ""


# Watching.


def _watch(sweep: Sweep, number: str, stream: TextIO) -> str:
    """Say how far the cells are until all have results or no job is left; returns what went wrong, if anything."""
    left, said, said_at = sweep.able, "", 0.0
    while True:
        states = _states(number)  # before the cells: the last job may end with the last cell
        left = sweep.left(left)
        if not left:
            print(f"{len(sweep.able)}/{len(sweep.able)} cells done", file=stream)
            return ""
        if not states:
            return _what_ended(sweep, number, left)
        line = _line(sweep, left, states)
        if line != said and time.monotonic() - said_at > (SAY_SECONDS if said else 0.0):
            said, said_at = line, time.monotonic()
            print(line, file=stream, flush=True)
        time.sleep(LOOK_SECONDS)


def _line(sweep: Sweep, left: Sequence[PlannedCell], states: Counter[str]) -> str:
    holders, there = Counter[str](), begun(sweep.runs)
    for cell in left:
        if cell.id in there and (found := holder(lease_path(sweep.runs, cell.id))) is not None:
            holders[found.rpartition(" on ")[2]] += 1
    total = len(sweep.able)
    where = f" on {', '.join(sorted(holders))}" if holders else ""
    jobs = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"{total - len(left)}/{total} cells done, {sum(holders.values())} running{where}; jobs: {jobs}"


def _what_ended(sweep: Sweep, number: str, left: Sequence[PlannedCell]) -> str:
    """Say what the jobs have left of a sweep that is not done; nothing where records say it themselves."""
    logs = [path for path in sorted(sweep.folder.glob(f"{number}_*")) if path.suffix in (".err", ".out")]
    if not logs:
        return (
            f"job {number} ended without a line in {sweep.folder}: its nodes do not see this folder, or cannot write "
            "there. Give a folder that login node and nodes share, runs=DIR"
        )
    recorded = count_by_status(left, sweep.runs)
    if not (unrun := recorded.get("not run", 0) + recorded.get("not measured", 0)):
        return ""
    last = max(logs, key=lambda path: (path.suffix == ".err", path.stat().st_mtime))
    lines = last.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return f"job {number} ended, {unrun} cell(s) have no result; {last} ends with:\n" + "\n".join(lines)


def _states(number: str) -> Counter[str]:
    """Return how many tasks of an array are in each state, with why they wait; empty once all have ended."""
    until = time.monotonic() + UNHEARD_SECONDS
    command = ["squeue", "--noheader", "--array", f"--jobs={number}", "--format=%T|%r"]
    while True:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            rows = [line.partition("|") for line in found.stdout.splitlines() if line.strip()]
            return Counter(
                state.lower() if why in ("", "None") else f"{state.lower()} ({why})" for state, _, why in rows
            )
        if "Invalid job id" in found.stderr:  # SLURM has forgotten it
            return Counter()
        if time.monotonic() > until:
            first, _, _ = found.stderr.strip().partition("\n")
            raise UsageError(f"squeue: {first or 'no message'}")
        time.sleep(LOOK_SECONDS)
