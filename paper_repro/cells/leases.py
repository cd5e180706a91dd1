"""Leases: several runners share one runs folder, and each cell is run by exactly one of them."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from paper_repro.base.files import locked

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
"""A lease whose heartbeat is older than this has lost its holder (on another host, where the pid says nothing)."""


class LeasedError(RuntimeError):
    """Another live process holds the lease."""


class Leases:
    """The leases one process holds, kept alive by a heartbeat.

    A lease is a file created with O_EXCL that names host and pid.  Judging a lease stale and taking it over happens
    under a lock, so that two runners cannot both take the same one.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held: dict[str, Path] = {}
        self._stop = threading.Event()
        self._guard = threading.Lock()
        threading.Thread(target=self._beat, daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    @contextlib.contextmanager
    def hold(self, cells: Sequence[str]) -> Iterator[None]:
        """Hold the leases of all ``cells``, or none.

        Raises:
            LeasedError: somebody else holds one of them.
        """
        paths = {cell: lease_path(self._root, cell) for cell in sorted(cells)}
        taken: list[Path] = []
        try:
            with locked(self._root / ".lease-lock"):
                for cell, path in paths.items():
                    if holder(path) is not None:
                        raise LeasedError(f"cell {cell} is being run by {holder(path)}")
                for path in paths.values():
                    _create(path)
                    taken.append(path)
            with self._guard:
                self._held.update(paths)
            yield
        finally:
            with self._guard:
                for cell in paths:
                    self._held.pop(cell, None)
            with locked(self._root / ".lease-lock") if taken else contextlib.nullcontext():
                for path in taken:
                    # A process that slept past STALE_SECONDS has lost its lease: it is another's now, or nobody's.
                    if _signature(path) == _own_signature():
                        path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with self._guard:
                paths = list(self._held.values())
            for path in paths:
                with contextlib.suppress(OSError):
                    os.utime(path)


def lease_path(root: Path, cell: str) -> Path:
    return root / "cells" / cell / "lease"


def clear(root: Path, cells: Iterable[str]) -> None:
    """Remove those leases of ``cells`` that nobody alive holds."""
    left = [path for path in (lease_path(root, cell) for cell in cells) if path.exists()]
    with locked(root / ".lease-lock") if left else contextlib.nullcontext():
        for path in left:
            if holder(path) is None:
                path.unlink(missing_ok=True)


def holder(path: Path) -> str | None:
    """Return who holds the lease, as ``pid N on HOST``; None if nobody alive does."""
    # Leases are signed under the lock: an unsigned one was left by a process killed while it signed.
    if (signature := _signature(path)) is None:
        return None
    host, pid = signature
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
    if age > STALE_SECONDS or (host == socket.gethostname() and not _alive(pid)):
        return None
    return f"pid {pid} on {host}"


def _signature(path: Path) -> tuple[str, int] | None:
    try:
        content = json.loads(path.read_text())
        return str(content["host"]), int(content["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _own_signature() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except (OSError, IndexError):
        return True
    return state != "Z"


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    with os.fdopen(descriptor, "w") as stream:
        host, pid = _own_signature()
        json.dump({"host": host, "pid": pid}, stream)
