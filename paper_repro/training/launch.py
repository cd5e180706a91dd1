"""Starts the processes of a cell that is trained on several devices of this computer, and ends them.

The process that was given the cell is rank 0; it alone speaks, writes and measures.  It starts one process per further
device (this file, as a program), hands it the cell as a line of JSON, and holds its standard input open: when rank 0 is
gone, that input ends, and so does the process.  If one of the others dies, rank 0 ends itself and the rest, and whoever
gave it the cell may start it again from its last checkpoint.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from paper_repro.base.errors import STOPPING, UsageError, check_started, place
from paper_repro.cells.tasks import Cell, StopRequestedError
from paper_repro.training import nodes, single
from paper_repro.training.build import build
from paper_repro.training.machine import Machine, settings
from paper_repro.training.ranks import Rank, join, meeting_place

_LOOK_SECONDS = 0.2
_OWN_ERROR_SECONDS = 10.0
"""How long rank 0 may take to meet the error that ended another rank."""
_LEAVE_SECONDS = 60.0


@contextlib.contextmanager
def launched(cell: Cell, folder: Path, machine: Machine) -> Iterator[Rank]:
    """This process as rank 0 of ``machine.count``, the others running the same cell until the block ends.

    Args:
        folder: of the checkpoints.
    """
    if (own := place()) is not None:
        with nodes.led(own, cell, folder, machine) as rank:
            yield rank
        return
    check_started(machine.nodes)
    if machine.count == 1:
        yield Rank()
        return
    store = meeting_place(machine.count)
    job = {"cell": cell.id, "config": cell.config, "folder": str(folder), "port": store.port}
    others = _Others([_start({**job, "rank": index}) for index in range(1, machine.count)])
    orderly = False
    try:
        yield join(0, machine.count, store, machine.device)
        orderly = True
    except StopRequestedError:
        orderly = True
        raise
    finally:
        others.end(orderly)
        if orderly:  # after an error NCCL would wait for what no longer comes
            dist.destroy_process_group()


class _Others:
    """The processes of ranks 1, 2, ..., watched by a thread: rank 0 may hang in a call that waits for a dead one."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self, orderly: bool) -> None:
        """Wait for the processes if they end by themselves, end them otherwise."""
        self._over.set()
        until = time.monotonic() + (_LEAVE_SECONDS if orderly else 10 * _LOOK_SECONDS)
        for index, process in enumerate(self._processes, 1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            if not orderly and (process.returncode or 0) < 0:  # rank 0's error is but that of the lost connection
                self._abandon(index, process.returncode)
        self._kill()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            for index, process in enumerate(self._processes, 1):
                if code := process.poll():
                    if code > 0 and self._over.wait(_OWN_ERROR_SECONDS):
                        return
                    self._abandon(index, code)

    def _abandon(self, index: int, code: int) -> NoReturn:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        print(f"rank {index} {how}: ending the other ranks too", file=sys.stderr, flush=True)
        self._kill()
        if code == -signal.SIGKILL:  # as if it had been rank 0: out of memory, or an impatient user
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _start(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-P", "-m", "paper_repro.training.launch"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # its exit code says why
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
    return process


def _end_with_rank_0() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main() -> None:
    """Be one of the ranks 1, 2, ... of the job on standard input."""
    job = json.loads(sys.stdin.readline())
    for name in STOPPING:  # rank 0 hears them and stops all after the same step
        signal.signal(name, signal.SIG_IGN)
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    machine = Machine.of(job["config"]["machine"])
    with settings(machine):
        built = build(Cell(job["cell"], job["config"]))
        store = meeting_place(machine.count, job["port"])
        rank = join(job["rank"], machine.count, store, machine.device_of(job["rank"]))
        try:
            single.train(built, Path(job["folder"]), single.Silence(), rank)
        except StopRequestedError:
            pass
        except UsageError as error:
            sys.exit(f"rank {rank.index}: {error}")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
