"""Fork servers and the workers that they fork, as the runner sees them."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from paper_repro.base import identity
from paper_repro.base.errors import UsageError
from paper_repro.base.processes import cause, memory_kills
from paper_repro.cells.estimates import CannotBuildError, Configs, Count
from paper_repro.cells.tasks import Cost


class WorkerProcess:
    """A worker: what it has told, and how it ended.

    Args:
        pipe: the descriptor from which its events are read.
    """

    _numbers = itertools.count()

    def __init__(self, pipe: int) -> None:
        self.number = next(self._numbers)
        self.pipe = pipe
        self.ended = False
        self.code: int | None = None
        """Its exit code or minus the signal that killed it; None before it ended, and if it never began."""
        self.cause = ""
        """What ended it, in words."""
        self.silent = False
        """Whether its pipe is closed."""
        self._memory_kills = memory_kills()
        self._buffer = b""
        os.set_blocking(pipe, False)

    def events(self) -> list[dict[str, Any]]:
        """Return the events that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while content := os.read(self.pipe, 65536):
                self._buffer += content
            self.silent = True
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self, code: int | None) -> None:
        self.ended, self.code = True, code
        self.cause = cause(code or 0, self._memory_kills)


class ServerProcess:
    """A fork server, which it starts, and its living workers.

    Args:
        runs: the folder of records.
        threads: with how many the workers compute; None: with as many as they like.
    """

    def __init__(self, runs: Path, threads: int | None) -> None:
        self.threads = threads
        self.workers: dict[int, WorkerProcess] = {}
        self.ended = False
        self.code_changed = False
        """Whether a worker was forked after the code had become another one than the server's."""
        self.socket, theirs = socket.socketpair()
        self._buffer = b""
        logs = runs / "logs"
        logs.mkdir(exist_ok=True)
        # -P: what lies in the working folder is never imported in place of a library.
        command = [sys.executable, "-P", "-m", "paper_repro.cells.start_fork_server"]
        with theirs, (logs / f"workers-{os.getpid()}.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--runs", str(runs), "--socket", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(threads),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, **message: Any) -> WorkerProcess:
        """Have a worker forked that does what ``message`` asks for (see ``worker.be_worker``)."""
        reading, writing = os.pipe()
        worker = WorkerProcess(reading)
        self.workers[worker.number] = worker
        content = json.dumps({"worker": worker.number, **message}).encode() + b"\n"
        with self._unless_it_died():
            sent = socket.send_fds(self.socket, [content], [writing])
            self.socket.sendall(content[sent:])
        os.close(writing)
        return worker

    def stop(self) -> None:
        """Let the workers save what they need to go on, and end; while it imports for the first, it ends at once."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def hear(self) -> list[WorkerProcess]:
        """Return the workers that have ended since; after the server itself has ended, all of them."""
        content = b""
        with contextlib.suppress(ConnectionResetError):
            content = self.socket.recv(65536)
        *lines, self._buffer = (self._buffer + content).split(b"\n")
        ended = []
        for found in map(json.loads, lines):
            if "code_changed" in found:
                self.code_changed = True
                continue
            worker = self.workers.pop(found["worker"])
            worker.end(found["code"])
            ended.append(worker)
        if not content:
            self.ended = True
            code = self.process.wait()
            for worker in self.workers.values():  # who ends by itself has told of the end of all that have begun
                worker.end(code or None)
            ended += self.workers.values()
            self.workers.clear()
        return ended

    @staticmethod
    def _unless_it_died() -> contextlib.AbstractContextManager[None]:
        """Suppress the errors of writing to a server that has died, which says so by its closed socket."""
        return contextlib.suppress(BrokenPipeError, ConnectionResetError)


class Servers:
    """The fork servers of a sweep: one for each number of threads that its workers compute with."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._servers: list[ServerProcess] = []

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.stop()
            server.socket.close()
        for server in self._servers:
            server.process.wait()

    def of(self, config: Mapping[str, Any]) -> ServerProcess:
        """Return the server whose workers may run cells of that config; it is started if there is none yet."""
        threads = config.get(identity.MACHINE, {}).get("threads", 1)
        for server in self._servers:
            if server.threads == threads:
                return server
        self._servers.append(ServerProcess(self._runs, threads))
        return self._servers[-1]

    def forget(self, server: ServerProcess) -> None:
        """Let go of a server that has ended."""
        self._servers.remove(server)
        server.socket.close()

    def stop(self) -> None:
        """Let the workers save what they need to go on, and end."""
        for server in self._servers:
            server.stop()

    def kill(self) -> None:
        """End the workers at once."""
        for server in self._servers:
            server.kill()

    def counting(self, devices: Mapping[str, Any]) -> Count:
        """Return ``count`` on a machine that must have the devices that a config asks for."""
        return partial(self.count, devices=devices)

    def count(self, configs: Configs, others: Configs, devices: Mapping[str, Any]) -> list[Cost | None]:
        """Return what cells of these configs cost; check of the others whether they can be built.

        A worker counts: this process imports no torch.

        Raises:
            CannotBuildError: a config that cannot be built.
            UsageError: a machine without the devices that ``devices`` asks for.
        """
        server = self.of(devices)
        worker = server.fork(count=configs, check=others, devices=devices)
        os.set_blocking(worker.pipe, True)
        events = worker.events()
        os.close(worker.pipe)
        while not worker.ended:
            server.hear()
        if server.ended:
            self.forget(server)
        (event,) = events or [{"event": "broken", "message": f"its process ended ({worker.cause})"}]
        if event["event"] == "refused" and event["number"] is not None:
            raise CannotBuildError(event["message"], event["number"])
        if event["event"] == "refused":
            raise UsageError(event["message"])
        if event["event"] == "broken":
            raise RuntimeError(f"counting what the cells cost: {event['message']}; see {self._runs / 'logs'}")
        return [None if cost is None else Cost(**cost) for cost in event["costs"]]


def _environment(threads: int | None) -> dict[str, str]:
    """Return the environment of workers that compute with so many threads; None: with as many as they like."""
    counts = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {**os.environ, **counts}
