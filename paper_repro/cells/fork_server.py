"""Workers, forked by ``multiprocessing``'s fork server from a process that has imported once what cells need.

All that a worker leaves behind ends with it, and a crash is its own.  The fork server never computes: a fork copies
neither threads nor a CUDA context.
"""

import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from paper_repro.base.configs import modules
from paper_repro.base.errors import STOPPING, cause
from paper_repro.base.identity import MACHINE
from paper_repro.cells import preload
from paper_repro.cells.worker import be_worker

CONTEXT = multiprocessing.get_context("forkserver")
NEEDED = ("hydra.utils", "paper_repro.cells.worker")
"""Modules that every worker needs."""
LOST = 255
"""The exit code that ``multiprocessing`` gives to a process whose fork server has ended; it may be alive."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep the signals to stop waiting, so that none comes between the start of a worker and a note of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerProcess:
    """A worker, which it starts, as the runner sees it; see ``worker.be_worker`` for the message."""

    def __init__(self, runs: Path, message: Mapping[str, Any]) -> None:
        self.events, telling = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=be_worker, args=(message, runs, telling))
        with telling:
            self._process.start()
        self.cause = ""
        """What ended it, in words."""

    @property
    def waits(self) -> list[Any]:
        """What ``multiprocessing.connection.wait`` may wait for until there is something to hear."""
        return [self.events] if self._process.exitcode is not None else [self.events, self._process.sentinel]

    def hear(self) -> tuple[list[dict[str, Any]], int | None]:
        """Return the events since the last call, and the exit code of a worker that has ended, else None."""
        heard: list[dict[str, Any]] = []
        code = self._process.exitcode  # before its last events are read
        try:
            while self.events.poll():
                heard.append(self.events.recv())
        except (EOFError, OSError):  # it has ended, perhaps in the middle of a message
            self._process.join()
            code = self._process.exitcode
        else:
            if code in (None, LOST):
                return heard, None
        self._signal(os.killpg, signal.SIGKILL)  # compilers, for example, that it has called
        self.events.close()
        self.cause = cause(code or 0)
        return heard, code

    def stop(self) -> None:
        """Let it save what it needs to go on, and end."""
        self._signal(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, with the processes that it has started."""
        self._signal(os.kill, signal.SIGKILL)
        self._signal(os.killpg, signal.SIGKILL)

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        assert self._process.pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(self._process.pid, number)


class ForkServer:
    """Starts workers for cells of some configs; it is ended, with those that are left, at the end of the context."""

    def __init__(self, runs: Path, configs: Sequence[Mapping[str, Any]]) -> None:
        self._runs, self._configs, self._is_ready = runs, configs, False
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            if not worker.events.closed:
                worker.kill()
        self._end()

    def prepare(self) -> None:
        """Import what the cells need, unless it was done; ``start`` comes after it."""
        if self._is_ready:
            return
        self._end()  # one that another sweep of this process has left
        threads = (self._configs[0].get(MACHINE) or {}).get("threads", 1)
        logs = self._runs / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        names = sorted({*NEEDED}.union(*map(modules, self._configs)))
        own = {preload.VARIABLE: json.dumps([str(logs / f"workers-{os.getpid()}.txt"), names])}
        own["PYTHONSAFEPATH"] = "1"  # what is in the working folder is never imported in place of a library
        if threads is not None:
            own |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        before = dict(os.environ)
        os.environ.update(own)
        try:
            forkserver.set_forkserver_preload([preload.__name__])
            forkserver.ensure_running()
        finally:
            os.environ.clear()
            os.environ.update(before)
        first = CONTEXT.Process(target=int)  # it starts once all is imported; until then a signal is heard
        try:
            first.start()
        except (OSError, EOFError) as error:
            raise RuntimeError(f"the process that imports what cells need has ended; see {logs}") from error
        first.join()
        self._is_ready = True

    def start(self, **message: Any) -> WorkerProcess:
        """Start a worker that does what the message asks for."""
        self._workers = [worker for worker in self._workers if not worker.events.closed]
        self._workers.append(WorkerProcess(self._runs, message))
        return self._workers[-1]

    def _end(self) -> None:
        """End the fork server at once, which would not listen while it imports."""
        server: Any = forkserver._forkserver
        if server._forkserver_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
            server._stop()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns in a worker.

        UsageError: the function's.  RuntimeError: it raised another error, or its process ended.
        """
        self.prepare()
        with uninterrupted():
            worker = self.start(call=function, arguments=arguments)
        events, code = list[dict[str, Any]](), None
        while code is None:
            wait(worker.waits)
            heard, code = worker.hear()
            events += heard
        ended = RuntimeError(f"its process ended ({worker.cause}); see {self._runs / 'logs'}")
        found = next((event["found"] for event in events if event["event"] == "returned"), ended)
        if isinstance(found, Exception):
            raise found
        return found
