"""Sees to it that a script runs in the repository's environment; each script runs this file first.

A Python without our package and what it needs is replaced by that of .venv, in the same process, with
the same words.  Where there is no .venv, one line says how to build it.  Old versions of Python must be able to read
this file.
"""

import importlib.util
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
VENV = os.path.join(ROOT, ".venv")  # noqa: PTH118
PYTHON = os.path.join(VENV, "bin", "python")  # noqa: PTH118


def is_whole() -> bool:
    """Return whether this Python has what every script needs."""
    return sys.version_info >= (3, 11) and all(map(importlib.util.find_spec, ("paper_repro", "tabulate")))


def enter(script: str) -> None:
    """Return in a Python that has what scripts need; else become it, or end with one line and exit code 2."""
    if is_whole():
        return
    inside = os.path.isdir(VENV) and os.path.realpath(sys.prefix) == os.path.realpath(VENV)  # noqa: PTH112
    if os.path.exists(PYTHON) and not inside:  # noqa: PTH110
        os.execv(PYTHON, [PYTHON, script] + sys.argv[1:])  # noqa: RUF005
    what = "is not whole" if inside else "lacks what this command needs, and there is no " + PYTHON
    sys.stderr.write(
        "error: " + (VENV if inside else sys.executable) + " " + what + "; build the environment: make -C " + ROOT
        + " environment, with PYTHON=python3.12 where python3 is older than 3.11\n"
    )  # fmt: skip
    sys.exit(2)


if __name__ == "__main__":
    enter(globals()["SCRIPT"])  # given by the script
