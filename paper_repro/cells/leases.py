"""Leases: several runners share one runs folder, and each cell is run by exactly one of them.

A lease is a lock of the operating system (flock) on the file ``lease`` in a cell's folder, with its holder's host and
process in it.  It ends with the process that holds it, however that ends.  On a folder that several computers share the
file server keeps the locks (NFS 4, GPFS, or Lustre mounted with ``-o flock``).
"""

import contextlib
import errno
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from paper_repro.base.errors import UsageError

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class LeasedError(RuntimeError):
    """Another live process holds the lease."""


class LeaseLostError(RuntimeError):
    """The file of a lease that this process holds was removed or replaced."""


class Leases:
    """The leases that one process holds.

    Args:
        root: the folder of records.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held: dict[Path, int] = {}
        """The number of each lease's file in its file system."""
        self._taking = threading.Lock()
        """Held while a lease is taken, so that another thread sees all or nothing of it."""

    @contextlib.contextmanager
    def hold(self, cells: Sequence[str]) -> Iterator[None]:
        """Hold the leases of all ``cells``, or none.

        Raises:
            LeasedError: another process holds one of them.
            UsageError: the file system has no locks.
        """
        with contextlib.ExitStack() as stack:
            for cell in sorted({*cells}):  # in one order, so that of those who want the same some get all
                path = lease_path(self._root, cell)
                path.parent.mkdir(parents=True, exist_ok=True)
                with self._taking:
                    lock = _taken(path)
                    if lock is None:
                        raise LeasedError(f"cell {cell} is being run by {holder(path) or 'another process'}")
                    stack.callback(self._release, path, lock)
                    path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}), encoding="utf-8")
                    self._held[path] = path.stat().st_ino
            yield

    def _release(self, path: Path, lock: BaseFileLock) -> None:
        if _number(path) == self._held.pop(path, None):
            path.unlink(missing_ok=True)  # a process that opened it before finds that it has no name, and tries again
        lock.release()

    def give_up(self) -> None:
        """Remove the files of all leases, in a process that is about to end; it takes no more of them."""
        self._taking.acquire()
        for path, number in list(self._held.items()):
            if _number(path) == number:
                path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise LeaseLostError unless the file of every lease that this process holds is still there."""
        for path, number in self._held.items():
            if _number(path) != number:
                raise LeaseLostError(
                    f"cell {path.parent.name}: this process has lost the cell's lease; {path} was removed"
                )


def lease_path(root: Path, cell: str) -> Path:
    return root / "cells" / cell / "lease"


def freed(path: Path) -> bool:
    """Return whether no live process holds a lease; the file that a dead process left is removed."""
    if not path.exists():
        return True
    lock = _taken(path)
    if lock is None:
        return False
    path.unlink(missing_ok=True)
    lock.release()
    return True


def holder(path: Path) -> str | None:
    """Return who holds the lease, as ``pid N on HOST``; None if no live process does."""
    if not path.exists():
        return None
    with contextlib.suppress(PermissionError):  # of another user's lease its content alone can be read
        lock = _taken(path)
        if lock is not None:
            lock.release()
            return None
    try:
        found = json.loads(path.read_bytes())
        return f"pid {found['pid']} on {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _taken(path: Path) -> BaseFileLock | None:
    """Return the lock of a lease, which this process now has; None if another one has it."""
    lock = FileLock(path, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise UsageError(
                f"{path.parent}: its file system has no locks (flock), by which runners share cells: give a folder "
                "elsewhere, runs=DIR"
            ) from error
        raise
    return lock


def _number(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
