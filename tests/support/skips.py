"""Skips; and the end of a test run: each reason for them, how many there were, and what brings the missing thing."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

import pytest

COMMANDS = {
    r"C\+\+ compiler|g\+\+": "apt-get install -y g++",
    r"no (bash|make) here": r"apt-get install -y \1",
    r"(could not import|is not installed$)": "pip install -e '.[dev]'",
    r"(needs a|no) GPU": "run them on a computer with a GPU",
}
"""What brings the missing thing, by a pattern of reasons that do not say it themselves."""
_TOLD = re.compile(r"install |set PAPER_REPRO_|prepare_data")
"""Stands in reasons that say it themselves."""


def skip(reason: str) -> NoReturn:
    """Skip a test; where $CI is set the reason is a warning, too, so that it stands in the summary of every run."""
    if os.environ.get("CI"):
        warnings.warn(reason, stacklevel=2)
    pytest.skip(reason)


def lines(reports: Iterable[Any]) -> list[str]:
    """Return a line for each reason, the most frequent first; a file that several workers skipped counts once."""
    skipped = {(report.nodeid, _reason(report)) for report in reports}
    counts = sorted(Counter(reason for _, reason in skipped).items(), key=lambda item: (-item[1], item[0]))
    return [f"{count} skipped: {reason}{_command(reason)}" for reason, count in counts]


def _reason(report: Any) -> str:
    """Return why a test was skipped, from pytest's (file, line, "Skipped: reason")."""
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(said.removeprefix("Skipped: ").split())


def _command(reason: str) -> str:
    if _TOLD.search(reason):
        return ""
    for pattern, command in COMMANDS.items():
        if found := re.search(pattern, reason):
            return f"; {found.expand(command)}"
    return ""
