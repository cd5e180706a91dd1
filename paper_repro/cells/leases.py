"""Leases: several runners share one runs folder, and each cell is run by exactly one of them.

A lease is a lock of the operating system (flock) on the file ``lease`` in a cell's folder, which names its holder.  It
ends with the process that holds it, however that ends.  On a folder that several computers share the file server keeps
the locks (NFS 4, GPFS, or Lustre mounted with ``-o flock``).
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from paper_repro.base.errors import UsageError

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class LeasedError(RuntimeError):
    """Another live process holds the lease."""


def lease_path(root: Path, cell: str) -> Path:
    return root / "cells" / cell / "lease"


@contextlib.contextmanager
def hold(root: Path, cells: Sequence[str]) -> Iterator[None]:
    """Hold the leases of all ``cells`` below ``root``, or none; LeasedError: another process holds one of them."""
    with contextlib.ExitStack() as stack:
        for cell in sorted({*cells}):  # in one order, so that one of two processes that want the same cells gets all
            path = lease_path(root, cell)
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _take(path)
            if lock is None:
                raise LeasedError(f"cell {cell} is being run by {holder(path) or 'another process'}")
            stack.callback(_release, path, lock)
            path.write_text(f"pid {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield


def is_free(path: Path) -> bool:
    """Return whether no live process holds a lease; the file that a dead process left is removed."""
    if not path.exists():
        return True
    lock = _take(path)
    if lock is not None:
        _release(path, lock)
    return lock is not None


def holder(path: Path) -> str | None:
    """Return who holds the lease, as ``pid N on HOST``; None if no live process does."""
    with contextlib.suppress(PermissionError):  # of another user's lease its content alone can be read
        if is_free(path):
            return None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8") or "another process"
    return None


def _take(path: Path) -> BaseFileLock | None:
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


def _release(path: Path, lock: BaseFileLock) -> None:
    path.unlink(missing_ok=True)  # a process that opened it before finds that it has no name, and tries again
    lock.release()
