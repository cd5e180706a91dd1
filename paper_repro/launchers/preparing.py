"""Prepares data that cells lack, where that needs no network."""

import shlex
import subprocess
import sys
from collections.abc import Iterable

from paper_repro.base import identity
from paper_repro.base.errors import ROOT, UsageError
from paper_repro.cells.planned import PlannedCell

PREPARE = "--prepare"
_SCRIPT = ["python", "scripts/prepare_data.py"]
_FROM_ELSEWHERE = ("--download", "--from")


def commands(cells: Iterable[PlannedCell]) -> list[list[str]]:
    """Return the commands that prepare what cells lack and that need no network and no files, each once."""
    texts = dict.fromkeys(identity.reader_of(cell.config).get("prepare") or "" for cell in cells if cell.missing)
    found = [shlex.split(str(text)) for text in texts]
    return [words for words in found if words[:2] == _SCRIPT and not {*words} & {*_FROM_ELSEWHERE}]


def prepare(found: Iterable[list[str]], asked: bool) -> bool:
    """Run the commands if the user asked for it, or agrees at a terminal; return whether they were run.

    Raises:
        UsageError: one of them failed.
    """
    found = list(found)
    if not found:
        return False
    lines = "\n".join(f"    {shlex.join(words)}" for words in found)
    if not asked and not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"data are missing; this prepares them without a network:\n{lines}", file=sys.stderr)
    if not asked:
        print("prepare them now? [Y/n] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("", "y", "yes"):
            return False
    for words in found:
        if subprocess.run(
            [sys.executable, str(ROOT / words[1]), *words[2:]], stdout=sys.stderr, check=False
        ).returncode:
            raise UsageError(f"{shlex.join(words)} failed: mend what it says above, or prepare the data by hand")
    return True
