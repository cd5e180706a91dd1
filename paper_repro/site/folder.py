"""Writes a site into its folder, and replaces or deletes only files that an earlier build wrote.

``report.json`` lists the files of the site with their SHA-256. A folder that holds files but no such list belongs to
someone else and is refused.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout

from paper_repro.base.errors import UsageError
from paper_repro.base.files import CorruptFileError, read_regular, sha256_of_bytes

MARKER, LOCK, WRITER = "report.json", ".lock", "scripts/report.py"
MOST_BYTES = 10_000_000


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[None]:
    """Lock a folder of ours, or an empty one, while a site is written into it.

    Raises:
        UsageError: the folder belongs to someone else, cannot be written, or another process writes into it.
    """
    try:
        listed(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK, timeout=0):
            listed(folder)
            yield
    except Timeout as error:
        advice = "wait for it, or give another folder with to=DIR"
        raise UsageError(f"{folder}: another process builds a report there; {advice}") from error
    except OSError as error:
        advice = "give a folder that you may write to, with to=DIR"
        raise UsageError(f"{error.filename or folder}: cannot be written ({error.strerror}); {advice}") from error


def listed(folder: Path) -> dict[str, str]:
    """Return the files of the site in a folder, each with its hash; none for a new or empty folder.

    Raises:
        UsageError: the folder belongs to someone else, or its list of files is damaged.
    """
    if (folder.is_symlink() or folder.exists()) and not folder.is_dir():
        raise UsageError(f"{folder}: something else than a folder lies there; give a folder with to=DIR")
    inside = sorted(path.name for path in folder.iterdir() if path.name != LOCK) if folder.is_dir() else []
    if inside and MARKER not in inside:
        raise UsageError(
            f"{folder}: holds '{inside[0]}' and no {MARKER}, so it is no report of ours and is left alone; "
            "give a new or empty folder with to=DIR"
        )
    try:
        content: Any = json.loads(read_regular(folder / MARKER, MOST_BYTES)) if inside else {"files": {}}
        files = dict(content["files"])
        if (inside and content["written_by"] != WRITER) or not all(isinstance(one, str) for one in files.values()):
            raise ValueError("it is not one of ours")
        return files
    except (CorruptFileError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{folder / MARKER}: no list of a report's files ({error}), so the folder is left alone; remove the "
            "folder, or give another with to=DIR"
        ) from error


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make ``files`` the site in a folder that is ``opened``; a file that is already right is not written.

    The list names old and new files while they are written, so a build that was stopped can be repeated.

    Raises:
        UsageError: a path leaves the folder or goes through a link.
        OSError: the disk refuses.
    """
    known, new = listed(folder), {name: sha256_of_bytes(content) for name, content in files.items()}
    for name in files:
        _check(folder, name)
    _write(folder / MARKER, _list(known | new))
    for name, content in files.items():
        _write(folder / name, content)
    for name in known.keys() - new.keys():
        path = folder / name
        with contextlib.suppress(UsageError, FileNotFoundError, NotADirectoryError):
            _check(folder, name)
            if not path.is_symlink() and sha256_of_bytes(path.read_bytes()) == known[name]:
                path.unlink()
    _write(folder / MARKER, _list(new))


def _list(files: Mapping[str, str]) -> bytes:
    return json.dumps({"written_by": WRITER, "files": dict(sorted(files.items()))}, indent=0).encode() + b"\n"


def _write(path: Path, content: bytes) -> None:
    if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)
        part.write_bytes(content)
        part.replace(path)


def _check(folder: Path, name: str) -> None:
    """Check that a path lies in the folder, and that no folder on the way to it is a link."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or name in (MARKER, LOCK):
        raise UsageError(f"{name!r} is no path of a report's file")
    for above in PurePosixPath(name).parents:
        if above.parts and (folder / above).is_symlink():
            raise UsageError(f"{folder / above}: a link, expected a folder of the report; remove it")
