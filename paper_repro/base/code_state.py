"""Which code a process runs: git's commit, and whether the code differs from it.

This module imports nothing but the standard library: a worker reads the state before it imports the rest.
"""

import subprocess
from pathlib import Path
from typing import NamedTuple

_SECONDS = 10
_CODE = ("paper_repro", "kernels", "datamodules", "lightning_modules", "scripts")
_LIBRARIES = ("constraints.txt", "pyproject.toml", "setup.py")
_READ = (".py", ".yaml")


class CodeState(NamedTuple):
    """The commit of the checkout and whether it holds uncommitted changes; None where git could not say."""

    commit: str | None
    dirty: bool | None


def read_code_state(root: Path | None = None) -> CodeState:
    """Return the state of the checkout at ``root``, by default the one that this package lies in.

    Only these count: changed files and new Python and YAML files below the folders of code, and what says which
    libraries are installed.
    """
    root = root or Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return CodeState(None, None)
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "-z", "--untracked-files=all", "--", *_CODE, *_LIBRARIES)
    if not commit or changes is None:
        return CodeState(None, None)
    counting = [each for each in changes.split("\0") if each and (each[:2] != "??" or each.endswith(_READ))]
    return CodeState(commit, bool(counting))


def _git(root: Path, *words: str) -> str | None:
    # Without its optional lock: a git that is killed while it holds that leaves it, and refuses the user's next commit.
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        found = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found.stdout.strip("\n")
