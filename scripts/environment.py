"""Sees to it that a script runs in the repository's environment; each script runs this file first.

A Python without our package and what it needs is replaced by that of .venv, in the same process, with
the same words.  Where there is no .venv, one line says how to build it.  A Python that would import the package of
another checkout is refused: its code, and its commit in every record, would not be those of the script.  Old versions
of Python must be able to read this file.
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


def other() -> str:
    """Return the folder of the other checkout whose package this Python would import; nothing where it is ours."""
    spec = importlib.util.find_spec("paper_repro")
    places = [os.path.realpath(place) for place in (spec and spec.submodule_search_locations) or ()]
    ours = os.path.join(os.path.realpath(ROOT), "paper_repro")  # noqa: PTH118
    if not places or ours in places or not os.path.isdir(ours):  # noqa: PTH112
        return ""
    folder = os.path.dirname(places[0])  # noqa: PTH120
    return folder if os.path.isfile(os.path.join(folder, "scripts", "environment.py")) else ""  # noqa: PTH113, PTH118


def enter(script: str) -> None:
    """Return in a Python that has what scripts need; else become it, or end with one line and exit code 2."""
    if is_whole():
        folder = other()
        if folder:
            sys.stderr.write(
                "error: this Python runs the code of " + folder + ", the script is that of " + ROOT
                + "; use the environment of this checkout: make -C " + ROOT + " environment, then "
                + PYTHON + " " + script + "; or set PYTHONPATH=" + ROOT + "\n"
            )  # fmt: skip
            sys.exit(2)
        from paper_repro.base import entry

        entry.prepare()  # before anything else is imported
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
