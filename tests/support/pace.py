"""Which tests are quick: tests/slow.txt names the test functions that are not, with the seconds that they took.

``pytest --fast`` leaves those functions out.  ``pytest --write-slow`` measures the files that it runs and writes their
lines anew.  What counts is processor time, over all cases of a function and with the processes that it starts: it
hardly depends on what else the machine does.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

SLOW = Path(__file__).resolve().parent.parent / "slow.txt"
LIMIT = 0.3
"""Seconds of processor time that all cases of a quick test function take together."""
HEAD = f"# Functions that take more than {LIMIT} s of processor time; see tests/support/pace.py.\n"


def seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def function(test: str) -> str:
    """The function of a test's node id, without the case: tests/x.py::test_y[z] -> tests/x.py::test_y."""
    return test.partition("[")[0]


def read(path: Path = SLOW) -> dict[str, float]:
    """Seconds by slow function."""
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return {name: float(taken) for name, taken in lines}


def total(measured: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Seconds by function from (node id, seconds) of single tests."""
    found: dict[str, float] = {}
    for test, taken in measured:
        found[function(test)] = found.get(function(test), 0.0) + taken
    return found


def text(found: Mapping[str, float], before: Mapping[str, float]) -> str:
    """The content of slow.txt, the slowest function first: what was found, and of files without a finding what was."""
    files = {name.partition("::")[0] for name in found}
    kept = {name: taken for name, taken in before.items() if name.partition("::")[0] not in files}
    slow = sorted(((taken, name) for name, taken in {**kept, **found}.items() if taken > LIMIT), reverse=True)
    return HEAD + "".join(f"{name} {taken:.1f}\n" for taken, name in slow)
