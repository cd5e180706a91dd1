"""The folder of a report: only our own files are ever written over or deleted in it.

A marker file lists every file of the report with its SHA-256.  A folder that holds something and no marker belongs to
somebody else and is refused.  A file of an older report is deleted only if it is still as it was written.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout

from paper_repro.base.errors import UsageError
from paper_repro.base.files import CorruptFileError, read_regular, sha256_of_bytes

MARKER, LOCK = "report.json", ".lock"
WRITER = "scripts/report.py"
MOST_BYTES = 10_000_000
"""The size of a marker above which it is not read."""


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[None]:
    """Hold a folder alone, which is ours or empty.

    Raises:
        UsageError: it is somebody else's, no folder, cannot be made, or another process builds a report in it.
    """
    refuse_foreign(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"{folder}: another process builds a report there; wait for it, or give another folder with to=DIR"
        ) from error
    except OSError as error:
        raise _refused(folder, error) from error
    try:
        refuse_foreign(folder)
        yield
    finally:
        lock.release()


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make ``files`` the report in a folder that is ``opened``; files that have the content already stay.

    The marker lists old and new files while they are written, so that a build that was stopped can be repeated.

    Raises:
        UsageError: a path leaves the folder or goes through a link in it, or the disk refuses.
    """
    known = _listed(folder)
    new = {name: sha256_of_bytes(content) for name, content in files.items()}
    try:
        for name in files:
            _check(folder, name)
        if {**known, **new} != known:
            _replace(folder / MARKER, _marker({**known, **new}))
        for name, content in files.items():
            path = folder / name
            if not (path.is_file() and not path.is_symlink() and path.read_bytes() == content):
                path.parent.mkdir(parents=True, exist_ok=True)
                _replace(path, content)
        for name in known.keys() - new.keys():
            _delete(folder, name, known[name])
        _replace(folder / MARKER, _marker(new))
    except OSError as error:
        raise _refused(Path(error.filename or folder), error) from error


def refuse_foreign(folder: Path) -> None:
    """Refuse what is somebody else's, or no folder.

    Raises:
        UsageError: it holds files and no marker, or cannot be read.
    """
    if folder.is_symlink() or folder.exists():
        if not folder.is_dir():
            raise UsageError(f"{folder}: something else than a folder lies there; give a folder with to=DIR")
        try:
            inside = sorted(path.name for path in folder.iterdir() if path.name != LOCK)
        except OSError as error:
            raise _refused(folder, error) from error
        if inside and MARKER not in inside:
            raise UsageError(
                f"{folder}: holds '{inside[0]}' and no {MARKER}, so it is no report of ours and is left alone; "
                "give a new or empty folder with to=DIR"
            )
    if (folder / MARKER).exists():
        _listed(folder)


def _listed(folder: Path) -> dict[str, str]:
    """Return the files of the report in a folder, each with its hash; none where there is no report.

    Raises:
        UsageError: the marker is damaged, or not one of ours.
    """
    path = folder / MARKER
    try:
        content: Any = json.loads(read_regular(path, MOST_BYTES))
        files = content["files"]
        if content["written_by"] != WRITER or not all(isinstance(one, str) for pair in files.items() for one in pair):
            raise ValueError("it is not one of ours")
    except FileNotFoundError:
        return {}
    except (CorruptFileError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{path}: no list of a report's files ({error}), so the folder is left alone; remove the folder, or give "
            "another with to=DIR"
        ) from error
    return dict(files)


def _marker(files: Mapping[str, str]) -> bytes:
    return json.dumps({"written_by": WRITER, "files": dict(sorted(files.items()))}, indent=0).encode() + b"\n"


def _check(folder: Path, name: str) -> None:
    """Check that a path lies in the folder, and that no folder on the way to it is a link."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or name in (MARKER, LOCK):
        raise UsageError(f"{name!r} is no path of a report's file")
    for above in PurePosixPath(name).parents:
        if above.parts and (folder / above).is_symlink():
            raise UsageError(f"{folder / above}: a link, expected a folder of the report; remove it")


def _replace(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=".report.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _delete(folder: Path, name: str, digest: str) -> None:
    """Delete a file of an older report, and the folders that this leaves empty; one that was changed stays."""
    try:
        _check(folder, name)
        path = folder / name
        if path.is_symlink() or sha256_of_bytes(path.read_bytes()) != digest:
            return
    except (UsageError, FileNotFoundError, NotADirectoryError):
        return
    path.unlink()
    for above in list(PurePosixPath(name).parents)[:-1]:
        try:
            (folder / above).rmdir()
        except OSError:  # not empty
            return


def _refused(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path}: cannot be written ({error.strerror}); give a folder that you may write to, with to=DIR")
