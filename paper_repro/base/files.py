"""Files that survive a kill and a full disk, whole or absent and checked when read; where data files are; git's state.

With ``errors`` it imports the standard library and filelock alone: a worker reads git's state before it imports the
rest.
"""

import contextlib
import errno
import hashlib
import math
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from filelock import FileLock

from paper_repro.base.errors import HOME, ROOT

DIGEST_SUFFIX = ".sha256"
PART_SUFFIX = ".part"
_SIDECAR_BYTES = 1_000
DATA_VARIABLE = "PAPER_REPRO_DATA"
DATA = HOME / "data"
_SECONDS = 10
_CODE = ("paper_repro", "kernels", "datamodules", "lightning_modules", "scripts")
_LIBRARIES = ("constraints.txt", "pyproject.toml", "setup.py")
_READ = (".py", ".yaml")


class CorruptFileError(ValueError):
    """A file on disk differs from its first content."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` so that every reader, and every crash, sees the old file or the new one, whole."""
    with _taking_the_name_of(path) as stream:
        stream.write(content)


@contextlib.contextmanager
def _taking_the_name_of(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        prefix=f".{path.name}.", suffix=PART_SUFFIX, dir=path.parent, delete=False
    ) as temporary:
        try:
            yield temporary.file
            temporary.flush()
            os.fsync(temporary.fileno())
            os.fchmod(temporary.fileno(), 0o644)
            Path(temporary.name).replace(path)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too, is to survive a crash
    finally:
        os.close(folder)


def read_regular(path: Path, most: int, content: bool = True) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; without ``content`` it is checked alone.

    Raises:
        FileNotFoundError, NotADirectoryError: there is nothing of that name.
        CorruptFileError: it is a folder, a device, a pipe or a link in a circle, too large, or cannot be read.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CorruptFileError(f"{path}: a folder, device or pipe, expected a regular file")
        if status.st_size > most:
            raise CorruptFileError(f"{path}: {status.st_size:,} bytes, expected at most {most:,}")
        if not content:
            return b""
        with path.open("rb") as stream:
            return stream.read(most)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise CorruptFileError(f"{path}: cannot be read ({error.strerror})") from error


def sha256_of_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_path(path: Path) -> Path:
    """Return the sidecar that holds the SHA-256 of ``path``."""
    return path.with_name(path.name + DIGEST_SUFFIX)


def write_with_digest(path: Path, content: bytes) -> None:
    """``stream_with_digest`` for content in memory."""
    stream_with_digest(path, lambda stream: stream.write(content))


def stream_with_digest(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let ``write`` fill a stream that becomes ``path``, and put its SHA-256 beside it.

    The sidecar takes its place just before the file does: after a crash between the two, the old content counts as
    damaged.  Callers that must survive that keep an older file (see ``training.checkpoints``).
    """
    with _taking_the_name_of(path) as stream:
        try:
            write(stream)
        except RuntimeError as error:  # torch.save's, about positions, where the disk is full
            stream.flush()
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise
        stream.flush()
        os.fsync(stream.fileno())
        write_atomically(digest_path(path), sha256_of_file(Path(stream.name)).encode() + b"\n")


def read_with_digest(path: Path) -> bytes:
    """Return the content of ``path``; CorruptFileError where the digest beside it is absent or another one."""
    content = path.read_bytes()
    _compare(path, sha256_of_bytes(content))
    return content


def check_digest(path: Path) -> None:
    """``read_with_digest`` without holding the content in memory."""
    read_regular(path, sys.maxsize, content=False)
    _compare(path, sha256_of_file(path))


def _compare(path: Path, found: str) -> None:
    sidecar = digest_path(path)
    try:
        expected = read_regular(sidecar, _SIDECAR_BYTES)
    except (OSError, CorruptFileError):
        expected = b""
    if found.encode() + b"\n" != expected:
        raise CorruptFileError(
            f"{path}: damaged: its SHA-256 is {found[:12]}..., "
            f"{sidecar.name} says {expected[:12].decode(errors='replace') or 'nothing'}"
        )


def cached(path: Path, build: Callable[[], bytes], seconds: float = math.inf) -> bytes:
    """Return the content of ``path``, built by whichever process asks first.

    It is built again if the file is damaged, or was written more than so many ``seconds`` ago or in the future.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(path.name + ".lock")):
        try:
            if not abs(time.time() - path.stat().st_mtime) <= seconds:
                raise FileNotFoundError
            return read_with_digest(path)
        except (FileNotFoundError, CorruptFileError):
            content = build()
            write_with_digest(path, content)
            return content


locked = FileLock
"""Holds the operating system's lock on a path; it is freed when the process ends, however it ends."""


def disk_refuses(error: OSError) -> bool:
    """Return whether the disk is full, over its quota, read-only or closed to this user."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


# Data.


def places(root: str | Path | None = None) -> list[tuple[str, Path | None]]:
    """Return the folders that are looked in, in order, each with its name; None where it is not set."""
    named = (
        ("machine.data_root", root),
        (f"${DATA_VARIABLE}", os.environ.get(DATA_VARIABLE)),
        ("the repository" if HOME == ROOT else "this folder", DATA),
    )
    return [(name, Path(folder).expanduser() if folder else None) for name, folder in named]


def find_data(name: str, root: str | Path | None = None) -> Path | None:
    """Return the file or folder ``name`` in the first of the ``places`` that has it; None if it is in none."""
    paths = (folder / name for _, folder in places(root) if folder is not None)
    return next((path for path in paths if path.exists()), None)


def absent(name: str, root: str | Path | None = None, command: str = "") -> str:
    """Say that ``name`` is in none of the places, and give the command that mends it."""
    looked = [f"{where} ({folder / name if folder else 'not set'})" for where, folder in places(root)]
    advice = f"put it there, or run: {command}" if command else "put it there"
    return f"needs {name}; it is not in {' and not in '.join(looked)}, and nothing is downloaded; {advice}"


# Code.


class CodeState(NamedTuple):
    """The commit of the checkout and whether it holds uncommitted changes; None where git could not say."""

    commit: str | None
    dirty: bool | None


def read_code_state(root: Path = ROOT) -> CodeState:
    """Return the state of the checkout at ``root``, by default that of this package.

    Changed files and new Python and YAML files below the folders of code count, and the lists of libraries.
    """
    if not (root / ".git").exists():
        return CodeState(None, None)
    commit = git(root, "rev-parse", "HEAD")
    changes = git(root, "status", "--porcelain", "-z", "--untracked-files=all", "--", *_CODE, *_LIBRARIES)
    if not commit or changes is None:
        return CodeState(None, None)
    counting = [each for each in changes.split("\0") if each and (each[:2] != "??" or each.endswith(_READ))]
    return CodeState(commit, bool(counting))


def git(root: Path, *words: str) -> str | None:
    """Return what git says of the checkout at ``root``; None where it fails."""
    # Without its optional lock: a git that is killed while it holds that leaves it, and refuses the user's next commit.
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        found = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found.stdout.strip("\n")
