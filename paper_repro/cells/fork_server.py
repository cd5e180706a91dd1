"""A process that imports what cells need, once, and forks a worker for each job.

Messages arrive as JSON lines on a socket.  One that is for a worker brings the write end of a pipe along, on which the
worker tells the runner how its job goes; the server itself tells the end of each worker, and why it came.

All that a worker leaves behind ends with it, and a crash is its own.  The server never computes, for a fork copies
neither threads nor a CUDA context.
"""

import argparse
import contextlib
import gc
import importlib
import json
import logging
import multiprocessing
import os
import selectors
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_repro.base.configs import modules
from paper_repro.base.errors import STOPPING
from paper_repro.base.files import CodeState, read_code_state
from paper_repro.base.identity import code_of
from paper_repro.base.processes import end_with_parent
from paper_repro.cells.records import versions
from paper_repro.cells.worker import be_worker

FORK = multiprocessing.get_context("fork")
HEARD = (*STOPPING, signal.SIGCHLD)
BUILDER = "hydra.utils"
"""Builds the objects of every config; its import takes a tenth of a second, which no worker waits for."""


class ForkServer:
    """Forks workers until it is told to stop, or the runner is gone, and the last of them has ended.

    Args:
        runs: the folder of records.
        runner: the socket to the runner.
        code: which code this process runs, read before it was imported.
    """

    def __init__(self, runs: Path, runner: socket.socket, code: CodeState) -> None:
        self._runs, self._runner, self._code = runs, runner, code
        self._workers: dict[int, multiprocessing.process.BaseProcess] = {}
        self._pipes: deque[int] = deque()
        self._buffer = b""
        self._stopping = self._code_changed = False
        self._selector = selectors.DefaultSelector()
        self._signals, self._woken = os.pipe()

    def serve(self) -> None:
        """Hear the runner and the signals until all is over."""
        for descriptor in (self._signals, self._woken):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._woken)
        self._hold_signals()
        self._register(self._signals, self._hear_signals)
        self._register(self._runner.fileno(), self._hear_runner)
        while self._workers or not self._stopping:
            for key, _ in self._selector.select():
                key.data()

    @staticmethod
    def _hold_signals() -> None:
        for name in HEARD:
            signal.signal(name, lambda *_: None)  # the byte that it leaves in the pipe is what counts

    def _register(self, descriptor: int, heard: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, heard)

    def _hear_signals(self) -> None:
        if set(os.read(self._signals, 4096)) & set(STOPPING):
            self._stop()
        for number, process in list(self._workers.items()):
            if (code := process.exitcode) is not None:
                del self._workers[number]
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid or 0, signal.SIGKILL)  # compilers, for example, that it has called
                process.close()
                self._tell_end(number, code)

    def _hear_runner(self) -> None:
        content, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionResetError):
            content, descriptors, _, _ = socket.recv_fds(self._runner, 65536, 64)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._pipes.extend(descriptors)
        *lines, self._buffer = (self._buffer + content).split(b"\n")
        for message in map(json.loads, lines):
            if not self._stopping and "worker" in message:
                pipe = self._pipes.popleft()
                self._fork(message, pipe)
                os.close(pipe)
            else:
                self._stop()
        if not content:
            self._stop()

    def _stop(self) -> None:
        """Hear no more of the runner, and let the workers save what they need to go on."""
        if not self._stopping:
            self._stopping = True
            self._selector.unregister(self._runner.fileno())
        for process in self._workers.values():
            process.terminate()

    def _tell_end(self, worker: int, code: int) -> None:
        """Tell the runner that a worker has ended, with its exit code or minus the signal that killed it."""
        self._tell({"worker": worker, "code": code})

    def _tell(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._runner.sendall(json.dumps(message).encode() + b"\n")

    def _fork(self, message: dict[str, Any], pipe: int) -> None:
        # What is imported from now on may be of other code.
        if not self._code_changed and read_code_state() != self._code:
            self._code_changed, self._code = True, self._code._replace(dirty=True)
            self._tell({"code_changed": True})
        if not self._workers:  # nothing is lost if this process ends in the middle of its imports
            for name in STOPPING:
                signal.signal(name, signal.SIG_DFL)
        with _frozen_imports():
            _import(message)
        self._hold_signals()
        process = FORK.Process(target=self._be_worker, args=(message, pipe))
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # until the new process has handlers of its own
        try:
            process.start()
        except OSError:  # no memory, or too many processes
            traceback.print_exc()
            self._tell_end(message["worker"], 1)
        else:
            self._workers[message["worker"]] = process
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)

    def _be_worker(self, message: dict[str, Any], pipe: int) -> None:
        """Go on as a worker, in the new process: let go of what is the server's."""
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._runner.close()
        for descriptor in (self._signals, self._woken, *self._pipes):
            os.close(descriptor)
        end_with_parent()
        be_worker(message, self._runs, pipe, self._code)


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


def _import(message: dict[str, Any]) -> None:
    """Import what every worker needs, and what a message's configs name; what cannot be is found by the worker."""
    versions()
    for cell in message.get("cells", ()):
        code_of(cell["config"])  # read before it is imported; a worker finds it read
    for name in sorted({*modules(message), BUILDER}):
        try:
            importlib.import_module(name)
        except Exception:
            traceback.print_exc()


def main(code: CodeState, arguments: Sequence[str] | None = None) -> None:
    """Serve the runner that started this process until it lets go.

    Args:
        code: which code this process runs, read before it was imported (see ``start_fork_server``).
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--socket", type=int, required=True, help="the descriptor of the socket to the runner")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO)
    runner = socket.socket(fileno=options.socket)
    runner.set_inheritable(False)
    ForkServer(options.runs, runner, code).serve()
