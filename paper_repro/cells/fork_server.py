"""A process that imports what cells need, once, and forks a worker for each job; and the runner's side of it.

The two talk by a connection of ``multiprocessing``.  The runner sends what its workers are to do; back come events,
each a dict with the number of the worker that tells it (None: the server itself); the last of a worker is its end.

All that a worker leaves behind ends with it, and a crash is its own.  The server never computes, for a fork copies
neither threads nor a CUDA context.
"""

import contextlib
import gc
import importlib
import itertools
import logging
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from paper_repro.base import identity
from paper_repro.base.configs import modules
from paper_repro.base.errors import STOPPING, UsageError, cause, end_with_parent, memory_kills
from paper_repro.base.files import CodeState, read_code_state
from paper_repro.cells.estimates import Configs
from paper_repro.cells.records import versions
from paper_repro.cells.tasks import Cost
from paper_repro.cells.worker import be_worker

FORK = multiprocessing.get_context("fork")
_NUMBERS = itertools.count()
LOOK_SECONDS = 1.0
"""How often a server looks for workers whose connection their own children keep open."""
BUILDER = "hydra.utils"
"""Builds the objects of every config; its import takes a tenth of a second, which no worker waits for."""
START = """
from paper_repro.base.files import read_code_state
code = read_code_state()  # before that code is imported
from paper_repro.cells.fork_server import serve
serve(code)
"""


class ForkServer:
    """Forks workers until it is told to stop, or the runner is gone, and the last of them has ended.

    Args:
        runs: the folder of records.
        runner: the connection to the runner.
        code: which code this process runs, read before it was imported.
    """

    def __init__(self, runs: Path, runner: Connection, code: CodeState) -> None:
        self._runs, self._runner, self._code = runs, runner, code
        self._workers: dict[int, tuple[multiprocessing.process.BaseProcess, Connection]] = {}
        self._stopping = self._code_changed = False

    def serve(self) -> None:
        """Hear the runner, the workers and the signals until all is over."""
        self._on_signals(self._stop)
        while self._workers or not self._stopping:
            # A runner that does not read now may be writing: it is heard, and told no more until it reads again.
            reads = bool(select.select([], [self._runner], [], 0)[1])
            heard = [events for _, events in self._workers.values()] if reads else []
            if not self._stopping:
                heard.append(self._runner)
            ready = wait(heard, LOOK_SECONDS if reads else LOOK_SECONDS / 20)
            if self._runner in ready:
                self._hear_runner()
            for number, (process, events) in list(self._workers.items()) if reads else ():
                if events in ready:
                    ended = not self._pass_on(events)
                else:
                    ended = process.exitcode is not None and not events.poll()
                if ended:
                    self._bury(number)

    @staticmethod
    def _on_signals(handler: Any) -> None:
        for name in STOPPING:
            signal.signal(name, handler)

    def _stop(self, *_: object) -> None:
        """Hear no more of the runner, and let the workers save what they need to go on."""
        self._stopping = True
        for worker in list(self._workers.values()):
            worker[0].terminate()

    def _hear_runner(self) -> None:
        try:
            message = self._runner.recv()
        except (EOFError, OSError):
            self._stop()
        else:
            self._fork(message)

    def _pass_on(self, events: Connection) -> bool:
        """Pass a worker's event on to the runner; return whether the worker may have more of them."""
        try:
            event = events.recv_bytes()
        except (EOFError, OSError):  # it ends, perhaps in the middle of a word
            return False
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._runner.send_bytes(event)
        return True

    def _bury(self, number: int) -> None:
        process, events = self._workers.pop(number)
        process.join()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # compilers, for example, that it has called
        code = process.exitcode
        process.close()
        events.close()
        self._tell(worker=number, event="ended", code=code)

    def _tell(self, **event: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._runner.send(event)

    def _fork(self, message: dict[str, Any]) -> None:
        # What is imported from now on may be of other code.
        if not self._code_changed and read_code_state() != self._code:
            self._code_changed, self._code = True, self._code._replace(dirty=True)
            self._tell(worker=None, event="code changed")
        if not self._workers:  # nothing is lost if this process ends in the middle of its imports
            self._on_signals(signal.SIG_DFL)
        with _frozen_imports():
            _import(message)
        self._on_signals(self._stop)
        events, telling = FORK.Pipe(duplex=False)
        process = FORK.Process(target=self._be_worker, args=(message, telling))
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # until the new process has handlers of its own
        try:
            if not self._stopping:
                process.start()
                self._workers[message["worker"]] = process, events
        except OSError:  # no memory, or too many processes
            traceback.print_exc()
            self._tell(worker=message["worker"], event="ended", code=1)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            telling.close()

    def _be_worker(self, message: dict[str, Any], telling: Connection) -> None:
        """Go on as a worker, in the new process: let go of what is the server's."""
        os.setpgid(0, 0)
        self._runner.close()
        for worker in self._workers.values():
            worker[1].close()
        end_with_parent()
        if message.get("cards"):  # before the first call of CUDA
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(message["cards"])
        be_worker(message, self._runs, lambda event: telling.send({"worker": message["worker"], **event}), self._code)


@contextlib.contextmanager
def _frozen_imports() -> Iterator[None]:
    """Import without the garbage collector, which would look at all that is imported, again and again, in vain.

    Nor does it look at that later, in a worker, where each look would copy memory.
    """
    before = len(sys.modules)
    gc.disable()
    yield
    if len(sys.modules) > before:
        gc.freeze()
    gc.enable()


def _import(message: Mapping[str, Any]) -> None:
    """Import what every worker needs, and what a message's configs name; what cannot be is found by the worker."""
    versions()
    for cell in message.get("cells", ()):
        identity.code_of(cell["config"])  # read before it is imported; a worker finds it read
    for name in sorted({*modules(message), BUILDER}):
        try:
            importlib.import_module(name)
        except Exception:
            traceback.print_exc()


def serve(code: CodeState) -> None:
    """Serve the runner that started this process, until it lets go; the process ends with it."""
    logging.basicConfig(level=logging.INFO)
    runs, descriptor = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)
    ForkServer(Path(runs), Connection(int(descriptor)), code).serve()
    os._exit(0)  # to take apart what was imported takes a third of a second


# The runner's side.


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep the signals to stop waiting, so that none cuts a message in two, or comes between it and its effect."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ServerProcess:
    """A fork server, which it starts.

    Args:
        runs: the folder of records.
        threads: with how many the workers compute; None: with as many as they like.
    """

    def __init__(self, runs: Path, threads: int | None) -> None:
        self.threads = threads
        self.ended = False
        self._memory_kills: dict[int, int | None] = {}
        """How many processes the kernel had killed when each of the living workers was asked for, by its number."""
        self.connection, theirs = multiprocessing.Pipe()
        logs = runs / "logs"
        logs.mkdir(exist_ok=True)
        counts = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        with theirs, (logs / f"workers-{os.getpid()}.txt").open("ab") as log:
            self.process = subprocess.Popen(
                # -P: what lies in the working folder is never imported in place of a library.
                [sys.executable, "-P", "-c", START, str(runs), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **counts},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, **message: Any) -> int:
        """Have a worker forked that does what ``message`` asks for (see ``worker.be_worker``); return its number."""
        number = next(_NUMBERS)
        self._memory_kills[number] = memory_kills()
        with uninterrupted(), contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead one is heard of
            self.connection.send({"worker": number, **message})
        return number

    def stop(self) -> None:
        """Let the workers save what they need to go on, and end; while it imports for the first, it ends at once."""
        self.process.send_signal(signal.SIGTERM)

    def hear(self) -> list[dict[str, Any]]:
        """Wait for an event and return it; the end of the server is that of all its workers.

        The end of a worker has its exit code, or minus the signal that killed it (None: it never began), and what
        ended it, in words.
        """
        events: list[dict[str, Any]]
        try:
            events = [self.connection.recv()]
        except (EOFError, OSError):
            self.ended = True
            code = self.process.wait() or None  # who ends by itself has told of the end of all that have begun
            events = [{"worker": number, "event": "ended", "code": code} for number in self._memory_kills]
        for event in events:
            if event["event"] == "ended":
                event["cause"] = cause(event["code"] or 0, self._memory_kills.pop(event["worker"]))
        return events


class Servers:
    """The fork servers of a sweep: one for each number of threads that its workers compute with."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self.started: list[ServerProcess] = []

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.started:
            server.stop()
            server.connection.close()
        for server in self.started:
            server.process.wait()

    def of(self, config: Mapping[str, Any]) -> ServerProcess:
        """Return the server whose workers may run cells of that config; it is started if there is none yet."""
        threads = config.get(identity.MACHINE, {}).get("threads", 1)
        for server in self.started:
            if server.threads == threads:
                return server
        self.started.append(ServerProcess(self._runs, threads))
        return self.started[-1]

    def forget(self, server: ServerProcess) -> None:
        """Let go of a server that has ended."""
        self.started.remove(server)
        server.connection.close()

    def stop(self) -> None:
        """Let the workers save what they need to go on, and end."""
        for server in self.started:
            server.stop()

    def kill(self) -> None:
        """End the workers at once."""
        for server in self.started:
            server.process.kill()

    def count(self, configs: Configs, others: Configs, devices: Mapping[str, Any]) -> list[Cost | None]:
        """Return what cells of these configs cost; check of the others whether they can be built.

        A worker counts: this process imports no torch.

        Raises:
            CannotBuildError: a config that cannot be built.
            UsageError: a machine without the devices that ``devices`` asks for.
        """
        server, found = self.of(devices), None
        worker, ended = server.fork(count=configs, check=others, devices=devices), None
        while ended is None:
            wait([server.connection])
            with uninterrupted():
                for event in server.hear():
                    if event["worker"] == worker and event["event"] == "ended":
                        ended = event
                    elif event["worker"] == worker:
                        found = event["found"]
        if server.ended:
            self.forget(server)
        if isinstance(found, UsageError):
            raise found
        if not isinstance(found, list):
            why = found or f"its process ended ({ended['cause']})"
            raise RuntimeError(f"counting what the cells cost: {why}; see {self._runs / 'logs'}")
        return found
