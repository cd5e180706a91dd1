"""Which code a process runs: git's commit, and whether files differ from it.

This module imports nothing but the standard library: a worker reads the state before it imports the rest.
"""

import subprocess
from pathlib import Path
from typing import NamedTuple

_SECONDS = 10


class CodeState(NamedTuple):
    """The commit of the checkout and whether it holds uncommitted changes; None where git could not say."""

    commit: str | None
    dirty: bool | None


def read_code_state(root: Path | None = None) -> CodeState:
    """Return the state of the checkout at ``root``, by default the one that this package lies in.

    What lies in results/ does not count: ``--publish`` itself writes there, and no code is read from it.
    """
    root = root or Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return CodeState(None, None)
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", ":!results")
    if not commit or changes is None:
        return CodeState(None, None)
    return CodeState(commit, bool(changes))


def _git(root: Path, *words: str) -> str | None:
    # Without its optional lock: a git that is killed while it holds that leaves it, and refuses the user's next commit.
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
