"""Checks that a disk takes records, and says so in one line when it takes no more."""

import errno
import tempfile
from pathlib import Path

from paper_repro.base.errors import UsageError
from paper_repro.cells.records import LIMIT_BYTES


def disk_message(error: OSError, runs: Path) -> str:
    """Return one line that says what happened below ``runs`` and what the user can do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{runs}: no space left; nothing finished was lost. Free some space, or move the folder and say runs=DIR"
    return f"{runs}: {error}"


def open_runs_folder(runs: Path) -> None:
    """Make sure that records can be written below ``runs``.

    Raises:
        UsageError: it is read-only, full, or no folder.
    """
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs, buffering=0) as probe:
            probe.write(b"x" * LIMIT_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UsageError(f"{runs}: no space left; free some, or say runs=DIR for another folder") from error
        raise UsageError(f"{runs}: cannot write there ({error.strerror}); say runs=DIR for another folder") from error
