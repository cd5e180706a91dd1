"""Leases: several runners share one runs folder, and each cell is run by exactly one of them.

A lease is a file that says who runs a cell: host, boot, process and a random token.  It takes its name by a hard link,
which fails where the name is taken, and is removed by who has signed a second file that is named by its content, so
nothing depends on locks of the file system or on clocks.  On the same boot and in the same pid namespace its holder
lives as long as the process does, stopped or not.  Elsewhere its holder touches it every few seconds, and is taken for
dead once nobody has for a minute, by the clock of whoever watches.  One that was taken for dead and is not finds
another's token before it writes anything.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from paper_repro.base.errors import UsageError

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
"""A lease of another boot or pid namespace that was watched for so long and not touched has lost its holder."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class LeasedError(RuntimeError):
    """Another live process holds the lease."""


class LeaseLostError(RuntimeError):
    """Another process has taken the lease over, because this one was silent for too long."""


@dataclass(frozen=True)
class Signature:
    """What a lease says of its holder."""

    host: str
    boot: str
    pids: str
    """The pid namespace."""
    pid: int
    start: int
    """When the process started, in clock ticks after the boot."""
    token: str


class Leases:
    """The leases one process holds, kept alive by a heartbeat.

    Args:
        root: the folder of records.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held: dict[Path, Signature] = {}
        self._stop = threading.Event()
        self._guard = threading.Lock()
        threading.Thread(target=self._beat, daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def give_up(self) -> None:
        """Release all leases, in a process that is about to end."""
        with self._guard:
            held, self._held = self._held, {}
        for path, own in held.items():
            _remove(path, _signed(own))

    @contextlib.contextmanager
    def hold(self, cells: Sequence[str]) -> Iterator[None]:
        """Hold the leases of all ``cells``, or none.

        Raises:
            LeasedError: somebody else holds one of them.
            UsageError: the file system has no hard links.
        """
        taken: dict[Path, Signature] = {}
        try:
            for cell in sorted({*cells}):  # in one order, so that of those who want the same some get all
                path = lease_path(self._root, cell)
                if not freed(path) or (own := _create(path)) is None:
                    raise LeasedError(f"cell {cell} is being run by {holder(path) or 'another process'}")
                taken[path] = own
            with self._guard:
                self._held.update(taken)
            yield
        finally:
            with self._guard:
                for path in taken:
                    self._held.pop(path, None)
            for path, own in taken.items():
                _remove(path, _signed(own))

    def check(self) -> None:
        """Raise LeaseLostError unless every lease that this process holds is still its own."""
        with self._guard:
            held = dict(self._held)
        for path, own in held.items():
            if (found := _signature(path)) != own:
                silent = f"was silent for more than {STALE_SECONDS:.0f} s and "
                by = f"pid {found.pid} on {found.host} has taken it over" if found else f"{path} was removed"
                raise LeaseLostError(
                    f"cell {path.parent.name}: this process {silent if found else ''}has lost the cell's lease; {by}"
                )

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with self._guard:
                held = dict(self._held)
            for path, own in held.items():
                with contextlib.suppress(OSError):
                    if _signature(path) == own:
                        os.utime(path)


def lease_path(root: Path, cell: str) -> Path:
    return root / "cells" / cell / "lease"


def clear(root: Path, cells: Iterable[str]) -> None:
    """Remove those leases of ``cells`` that nobody alive holds."""
    for cell in cells:
        freed(lease_path(root, cell))


def freed(path: Path) -> bool:
    """Return whether nobody alive holds a lease; what a dead process left of it is removed."""
    content = _content(path)
    if content is None:
        return True
    found = _parsed(content)
    if found is not None and _is_alive(path, found):
        return False
    _remove(path, content)
    return True


def holder(path: Path) -> str | None:
    """Return who holds the lease, as ``pid N on HOST``; None if nobody alive does.

    One of another boot or pid namespace counts as held until this process has watched it for ``STALE_SECONDS``.
    """
    found = _signature(path)
    return f"pid {found.pid} on {found.host}" if found is not None and _is_alive(path, found) else None


def _is_alive(path: Path, found: Signature) -> bool:
    return _start_of(found.pid) == found.start if _is_near(found) else not _watched_in_vain(path, found)


_seen: dict[Path, tuple[tuple[str, int], float]] = {}
"""What each lease from elsewhere was when it last changed, and when this process saw that."""


def _watched_in_vain(path: Path, found: Signature) -> bool:
    try:
        now = (found.token, path.stat().st_mtime_ns)
    except OSError:
        return False
    before, since = _seen.get(path, (None, 0.0))
    if before != now:
        _seen[path] = now, time.monotonic()
        return False
    return time.monotonic() - since > STALE_SECONDS


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _parsed(content: bytes) -> Signature | None:
    """Return who signed; None where it was damaged, for leases are whole when they take their names."""
    try:
        found = json.loads(content)
        host, boot, pids, token = (str(found[key]) for key in ("host", "boot", "pids", "token"))
        return Signature(host, boot, pids, int(found["pid"]), int(found["start"]), token)
    except (ValueError, KeyError, TypeError):
        return None


def _signature(path: Path) -> Signature | None:
    content = _content(path)
    return None if content is None else _parsed(content)


def _own_signature() -> Signature:
    pid = os.getpid()
    return Signature(socket.gethostname(), *_place(), pid, _start_of(pid) or 0, secrets.token_hex(16))


def _is_near(found: Signature) -> bool:
    """Return whether the holder's pid means to this process what it means to the holder."""
    return "" not in _place() and (found.boot, found.pids) == _place()


@cache
def _place() -> tuple[str, str]:
    """Return boot and pid namespace of this process; empty where the system does not tell them."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "", ""


def _start_of(pid: int) -> int | None:
    """Return when a living process started; None if there is none of that pid, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _create(path: Path) -> Signature | None:
    """Sign a lease that nobody has; None if somebody was faster."""
    own = _own_signature()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".lease-{own.token}")
    try:
        draft.write_bytes(_signed(own))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        return own if draft.stat().st_nlink == 2 else None  # a reply that was lost on its way says nothing
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise UsageError(
                f"{path.parent}: its file system has no hard links, by which runners share cells: "
                "give a folder elsewhere, runs=DIR"
            ) from error
        raise
    finally:
        draft.unlink(missing_ok=True)


def _signed(own: Signature) -> bytes:
    return json.dumps(asdict(own)).encode()


def _remove(path: Path, known: bytes) -> None:
    """Remove a lease if its content is still the known one.

    Only who has signed the file that is named by that content may remove it.  No two leases have the same token, so
    what this process reads once it has that right stays true until it has removed the lease.
    """
    right = path.with_name(f".taking-{hashlib.sha256(known).hexdigest()[:32]}")
    if not _may_take(right):
        return
    try:
        if _content(path) == known:
            path.unlink(missing_ok=True)
    finally:
        right.unlink(missing_ok=True)


def _may_take(right: Path) -> bool:
    """Return whether this process now has the right to remove a lease; it is inherited from a process that died."""
    return _create(right) is not None or (freed(right) and _create(right) is not None)
