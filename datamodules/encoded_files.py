"""Encoded images and clips: read ahead, and decoded in this process or in others, which need no torch for it."""

import contextlib
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, TypeVar

from paper_repro.base.errors import STOPPING, UsageError, at_least
from paper_repro.base.files import CorruptFileError, read_regular
from paper_repro.base.processes import end_with_parent

REFUSE, SKIP = ON_CORRUPT = ("refuse", "skip")
"""What is done with unfit files."""
MOST_BYTES = 2**26
"""The largest encoded file that is read."""
AHEAD = 2
"""Files that are read for each worker before they are asked for."""
T = TypeVar("T")

Named = tuple[str, Callable[[], bytes]]
"""The name of a file and what reads it, which may raise OSError or UnfitError."""


class UnfitError(ValueError):
    """An encoded image or clip that cannot be used; the message says what was found."""


def encoded(path: Path) -> bytes:
    """Read an encoded file, which must be of a plausible size: a link may lead to an endless device.

    Raises:
        FileNotFoundError: there is none.
        UnfitError: it is something else, or cannot be read; the folder is not named, for the manifest keeps this.
    """
    try:
        return read_regular(path, MOST_BYTES)
    except CorruptFileError as error:
        raise UnfitError(str(error).removeprefix(f"{path}: ")) from error


class Decoded(Generic[T]):
    """A file that is being decoded."""

    def __init__(self, name: str, future: "Future[T]") -> None:
        self.name, self._future = name, future

    def get(self) -> T:
        """Wait for what was decoded.

        Raises:
            UnfitError: the file cannot be read or used.
        """
        try:
            return self._future.result()
        except OSError as error:
            raise UnfitError(f"cannot be read ({error.strerror or error})") from error


class Decoders:
    """Processes that decode.

    Args:
        executor: what runs the calls.
        ahead: files that are read before they are asked for.
    """

    def __init__(self, executor: Executor, ahead: int) -> None:
        self.executor, self.ahead = executor, ahead

    def decoded(self, files: Iterable[Named], decode: Callable[[bytes], T]) -> Iterator[Decoded[T]]:
        """Yield each file in order; few are held at a time."""
        waiting: deque[Decoded[T]] = deque()
        for name, read in files:
            waiting.append(Decoded(name, self._submitted(read, decode)))
            if len(waiting) > self.ahead:
                yield waiting.popleft()
        yield from waiting

    def _submitted(self, read: Callable[[], bytes], decode: Callable[[bytes], T]) -> "Future[T]":
        try:
            content = read()
        except (UnfitError, OSError) as error:
            failed: Future[T] = Future()
            failed.set_exception(error)
            return failed
        return self.executor.submit(decode, content)


@contextlib.contextmanager
def decoders(workers: int) -> Iterator[Decoders]:
    """Start processes that decode; one worker: this process alone.

    Others are started anew, since a fork copies locks that are held.

    Raises:
        ValueError: fewer than one worker.
        UsageError: a worker was ended from outside.
    """
    at_least("workers", workers)
    executor = _Here() if workers == 1 else ProcessPoolExecutor(workers, get_context("spawn"), begin_worker)
    try:
        with executor:
            yield Decoders(executor, AHEAD * workers)
    except BrokenExecutor as error:
        raise UsageError(
            "a process that decodes was ended from outside, perhaps because memory was short; what is finished stays: "
            "give the same command again, with fewer --workers"
        ) from error


class _Here(Executor):
    """Runs a call at once."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def begin_worker() -> None:
    """Prepare a process that decodes: it leaves signals to the one that started it, and ends when that one ends."""
    for name in STOPPING:
        signal.signal(name, signal.SIG_IGN)
    end_with_parent()
