"""A process that runs one job, or calls one function, and tells the runner of events.

A job that is asked to stop saves what it needs to go on; it ends at once if it has computed nothing that it could save.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from paper_repro.base import identity
from paper_repro.base.errors import INTERRUPTED, STOPPING, UsageError, end_with_parent
from paper_repro.base.files import CodeState, disk_refuses, read_code_state, write_atomically
from paper_repro.base.identity import MACHINE
from paper_repro.cells import leases, measurements, preload, records
from paper_repro.cells.leases import LeasedError
from paper_repro.cells.records import BEGUN, disk_message, record_path, work_folder
from paper_repro.cells.tasks import (
    CHECKPOINTS,
    FAILED,
    FINISHED,
    OUT_OF_MEMORY,
    WEIGHTS,
    Cell,
    Cost,
    Outcome,
    StopRequestedError,
    task_of,
)


class Channel:
    """What a running job tells the runner, and whether one of ``signals`` asks it to stop: a task's ``Report``."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], signals: Sequence[signal.Signals] = ()) -> None:
        self._tell, self._signals = tell, signals
        self._saves = self.stop_requested = False

    def emit(self, event: str, **content: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._tell({"event": event, **content})

    def progress(self, step: int, steps: int, loss: float) -> None:
        self.saves = step < steps
        loss_or_none = loss if math.isfinite(loss) else None
        self.emit("progress", step=step, steps=steps, loss=loss_or_none, memory=_memory_of_card())

    @property
    def saves(self) -> bool:
        """Whether a signal to stop waits until the job has saved; else it ends the process at once."""
        return self._saves

    @saves.setter
    def saves(self, value: bool) -> None:
        if value != self._saves:
            self._saves = value
            for name in self._signals:
                signal.signal(name, self._request_stop if value else signal.SIG_DFL)

    def _request_stop(self, *_: object) -> None:
        self.stop_requested = True


def _memory_of_card() -> tuple[int, int] | None:
    """Return the bytes that this process has reserved on its GPU at most, and those that are free; None: no GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda.max_memory_reserved(), torch.cuda.mem_get_info()[0]


@dataclass
class Worker:
    """Runs a job against one runs folder."""

    runs: Path
    channel: Channel
    code: CodeState
    """The code of this process, read before it was imported."""

    def run(self, job: Mapping[str, Any]) -> None:
        """Hold the leases of a job's ``cells``, run those that have no result or are to be filled (``fill``), and
        record what became of them; ``cost`` is that of each, or None.
        """
        cells: Sequence[Cell] = job["cells"]
        try:
            with leases.hold(self.runs, [cell.id for cell in cells]):
                open_cells = [cell for cell in cells if not self._measured(cell, job["fill"])]
                if open_cells:
                    self._run_held(open_cells, job["cost"])
        except LeasedError as error:
            print(error, file=sys.stderr)
            self.channel.emit("busy")
            return
        self.channel.emit("end")

    def _measured(self, cell: Cell, fill: bool) -> bool:
        """Let the probes measure that have not yet, where weights are kept; whether nothing is left to do then."""
        found = measurements.find(self.runs, cell)
        if found is None or found.record.status != FINISHED:
            return found is not None and found.done
        again = measurements.to_fill(self.runs, cell) if fill else []
        if measurements.TASK in again:
            return False
        nodes = cell.config.get(identity.PROBES) or {}
        wanted = [name for name in nodes if name in {*found.lacking, *again}]
        if not wanted:
            return True
        folder, task = record_path(self.runs, cell.id).parent, task_of(cell.config)
        if not (folder / WEIGHTS).is_file():
            print(f"cell {cell.id}: no weights in {folder}: it is run again for probes {', '.join(wanted)}")
            return False
        origin = records.provenance(records.device(cell.config), self.code)
        status, note = FINISHED, ""
        with _log_to(folder / "log.txt"):
            for name in wanted:
                started = time.monotonic()
                try:
                    findings = task.measure(_localised(cell, self.runs), folder, name)
                    code = identity.code_of({**cell.config, identity.PROBES: {name: nodes[name]}})
                    listed = {measurements.LISTED: identity.keep_code(self.runs, code)}
                    taken = round(time.monotonic() - started, 3)
                    measurements.write(self.runs, cell, name, findings, taken, origin | listed)
                except Exception as error:  # the weights and their record stay as they are
                    if isinstance(error, OSError) and disk_refuses(error):
                        raise
                    traceback.print_exc()
                    status, note = FAILED, f"probes.{name}: {_last_line(error)}"
        self.channel.emit("done", cell=cell.id, status=status, note=note)
        return True

    def _run_held(self, batch: Sequence[Cell], cost: Cost | None) -> None:
        folder = work_folder(self.runs, [cell.id for cell in batch])
        folder.mkdir(parents=True, exist_ok=True)
        made_from = self._made_from(batch, folder)
        with _log_to(folder / "log.txt"):
            outcomes = self._outcomes(batch, folder, cost)
        self.channel.saves = True  # their records are written first
        origin = records.provenance(records.device(batch[0].config), self.code)
        for cell, outcome in zip(batch, outcomes, strict=True):
            self._keep_files(cell.id, folder)
            kept = self._record(cell, outcome, origin | made_from[cell.id])
            self.channel.emit("done", cell=cell.id, status=kept.status, note=kept.note)
        if len(batch) > 1:
            shutil.rmtree(folder, ignore_errors=True)
        elif not (folder / CHECKPOINTS).is_dir():
            (folder / BEGUN).unlink(missing_ok=True)

    def _made_from(self, batch: Sequence[Cell], folder: Path) -> dict[str, dict[str, Any]]:
        """Return each cell's code and data files; after a checkpoint all that it was trained with, if that is known."""
        path, known, found = folder / BEGUN, dict[str, Any](), dict[str, dict[str, Any]]()
        goes_on = any((folder / CHECKPOINTS).glob("*"))
        if goes_on:
            with contextlib.suppress(OSError, ValueError, TypeError):
                known = dict(json.loads(path.read_bytes()))
        for cell in batch:
            code, files = identity.code_of(cell.config), identity.data_files(cell.config)
            if goes_on:
                begun = known.get(cell.id, {})
                before = identity.read_code(self.runs, str(begun.get(measurements.LISTED)))
                if before is None:
                    found[cell.id] = {}
                    continue
                code, files = identity.joined(before, code), identity.joined(begun.get("files", {}), files)
            listed = {measurements.LISTED: identity.keep_code(self.runs, code)}
            found[cell.id] = listed | ({"files": files} if files else {})
        write_atomically(path, json.dumps(found).encode())
        return found

    def _outcomes(self, batch: Sequence[Cell], folder: Path, cost: Cost | None) -> list[Outcome]:
        local = [_localised(cell, self.runs) for cell in batch]
        try:
            task = task_of(local[0].config)
            # Other nodes hear of a request to stop at a step.
            self.channel.saves = int(local[0].machine.get("nodes") or 1) > 1
            outcomes = task.run(local, folder, self.channel)
        except StopRequestedError:
            raise
        except MemoryError as error:
            what = f"out of memory ({error})" if str(error) else "out of memory"
            advice = "lower machine.stack.most (cells trained at once), data.batch_size or the model's size"
            return [Outcome(OUT_OF_MEMORY, note=f"{what}: {advice}") for _ in batch]
        except UsageError as error:
            return [Outcome(FAILED, note=str(error)) for _ in batch]
        except Exception as error:
            if isinstance(error, OSError) and disk_refuses(error):
                raise
            traceback.print_exc()
            return [Outcome(FAILED, note=_last_line(error)) for _ in batch]
        if (cost := cost or task.cost(local[0].config)) is not None:
            for outcome in outcomes:
                outcome.parameters, outcome.multiply_adds = cost.parameters, cost.multiply_adds
        return outcomes

    def _record(self, cell: Cell, outcome: Outcome, origin: dict[str, Any]) -> Outcome:
        """Write the record of an outcome, unless it would replace a result by a failure; one that no record can hold is
        recorded as failed, which is returned.
        """
        path = record_path(self.runs, cell.id)
        if outcome.status != FINISHED and (found := records.find(self.runs, cell.id)) and found.status == FINISHED:
            return outcome
        try:
            records.write(path, records.from_outcome(cell.id, cell.config, outcome, origin))
        except ValueError as error:
            outcome = Outcome(FAILED, note=str(error))
            records.write(path, records.from_outcome(cell.id, cell.config, outcome, origin))
        return outcome

    def _keep_files(self, cell: str, folder: Path) -> None:
        """Move the cell's own files beside its record, and leave it a copy of the log."""
        home, own, log = record_path(self.runs, cell).parent, folder / cell, folder / "log.txt"
        home.mkdir(parents=True, exist_ok=True)
        if own.is_dir():
            for path in sorted(own.iterdir()):
                path.replace(home / path.name)
            own.rmdir()
        if home != folder and log.is_file():
            shutil.copyfile(log, home / log.name)


def be_worker(message: Mapping[str, Any], runs: Path, events: Connection) -> None:
    """Do in this process, which ends with it, what a message asks for, and tell the runner: a job (``Worker.run``),
    with the GPUs that the process may see as ``cards``; or the ``call`` of a function with ``arguments``.
    """
    os.setpgid(0, 0)  # the runner kills the group to end also what this process has called
    for name in STOPPING:
        signal.signal(name, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    end_with_parent(by=signal.SIGTERM)
    channel = Channel(events.send, STOPPING)
    if "call" in message:
        try:
            found = message["call"](*message["arguments"])
        except UsageError as error:
            found = UsageError(str(error))  # the runner cannot import every class of them
        except Exception as error:
            traceback.print_exc()
            found = RuntimeError(f"{_last_line(error)}; see {runs / 'logs'}")
        channel.emit("returned", found=found)
        return
    if message["cards"]:  # before the first call of CUDA
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(message["cards"])
    code = preload.CODE
    if read_code_state() != code:  # what is imported from now on may be of other code
        code = code._replace(dirty=True)
        channel.emit("code changed")
    try:
        Worker(runs, channel, code).run(message)
    except StopRequestedError:
        sys.exit(INTERRUPTED)
    except UsageError as error:
        channel.emit("fatal", message=str(error))
        sys.exit(1)
    except OSError as error:
        traceback.print_exc()
        channel.emit("fatal", message=disk_message(error, runs))
        sys.exit(1)


def _localised(cell: Cell, runs: Path) -> Cell:
    """Return a cell with this machine's cache folder and the cell's own; none of it changes a result."""
    cache = cell.machine.get("cache") or str(runs.resolve() / "cache")
    machine = {**cell.machine, "cache": cache, "log_folder": str(record_path(runs.resolve(), cell.id).parent)}
    return Cell(cell.id, {**cell.config, MACHINE: machine})


def _last_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Send this process's standard output and error to a file, also what C code prints."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
        os.dup2(log.fileno(), 1)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.dup2(kept, 1)
        os.close(kept)
