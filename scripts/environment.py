"""Sees to it that a script runs in the repository's environment, with the code of its own checkout; each script runs
this file first.

A Python without our package and what it needs is replaced by that of .venv, in the same process, with
the same words.  Where there is no .venv, one line says how to build it.  A git worktree without a .venv of its own uses
that of the main checkout, and puts its own code first, for the processes that it starts, too.  Any other Python that
would import the package of another checkout is refused: its code, and its commit in every record, would not be those of
the script.  Old versions of Python must be able to read this file.

    python3 scripts/environment.py WORDS    run the environment's Python with these words, and the code of this checkout
    python3 scripts/environment.py          print the main checkout if its environment is used
"""

import importlib.util
import os
import shlex
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120


def main_checkout() -> str:
    """Return the main checkout of a git worktree that has no environment of its own; nothing elsewhere."""
    try:
        with open(os.path.join(ROOT, ".git"), "rb") as stream:  # noqa: PTH118, PTH123
            kind, _, path = os.fsdecode(stream.read()).strip().partition(": ")
        folder = os.path.join(ROOT, path)  # noqa: PTH118
        with open(os.path.join(folder, "commondir"), "rb") as stream:  # noqa: PTH118, PTH123
            common = os.path.realpath(os.path.join(folder, os.fsdecode(stream.read()).strip()))  # noqa: PTH118
    except OSError:
        return ""
    main, own = os.path.dirname(common), os.path.join(ROOT, ".venv")  # noqa: PTH118, PTH120
    has_own = os.path.exists(own) and os.path.realpath(own) != os.path.realpath(os.path.join(main, ".venv"))  # noqa: PTH110, PTH118
    ours = kind == "gitdir" and os.path.basename(common) == ".git" and not has_own  # noqa: PTH119
    return main if ours and os.pathsep not in ROOT else ""  # no PYTHONPATH can hold a path with a colon


MAIN = main_checkout()
VENV = os.path.join(MAIN or ROOT, ".venv")  # noqa: PTH118
PYTHON = os.path.join(VENV, "bin", "python")  # noqa: PTH118
BUILD = "make -C " + shlex.quote(MAIN or ROOT) + " environment"


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


def own_code_first() -> None:
    """Have this process, and those that it starts, import the code of this checkout."""
    sys.path.insert(0, ROOT)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([ROOT] + ([before] if before else []))


def enter(words: "list[str]") -> None:
    """Return in a Python that has what scripts need; else become it, or end with one line and exit code 2."""
    if is_whole():
        folder = other()
        if folder and folder == MAIN:
            own_code_first()
        elif folder:
            sys.stderr.write(
                "error: this Python runs the code of " + folder + ", the script is that of " + ROOT
                + "; use the environment of this checkout: " + BUILD + ", then "
                + " ".join(map(shlex.quote, [PYTHON, words[0]])) + "; or set PYTHONPATH=" + shlex.quote(ROOT) + "\n"
            )  # fmt: skip
            sys.exit(2)
        from paper_repro.base import entry

        entry.prepare()  # before anything else is imported
        return
    become(words, inside=os.path.isdir(VENV) and os.path.realpath(sys.prefix) == os.path.realpath(VENV))  # noqa: PTH112


def become(words: "list[str]", inside: bool = False) -> None:
    """Go on as the environment's Python with these words, or end with one line and exit code 2."""
    if os.path.exists(PYTHON) and not inside:  # noqa: PTH110
        if MAIN:
            own_code_first()
        os.execv(PYTHON, [PYTHON] + words)  # noqa: RUF005
    what = "is not whole" if inside else "lacks what this command needs, and there is no " + PYTHON
    sys.stderr.write(
        "error: " + (VENV if inside else sys.executable) + " " + what + "; build the environment: " + BUILD
        + ", with PYTHON=python3.12 where python3 is older than 3.11\n"
    )  # fmt: skip
    sys.exit(2)


if __name__ == "__main__":
    if "SCRIPT" in globals():  # given by the script
        enter([globals()["SCRIPT"]] + sys.argv[1:])  # noqa: RUF005
    elif sys.argv[1:]:
        become(sys.argv[1:])
    elif MAIN and os.path.exists(PYTHON):  # noqa: PTH110
        sys.stdout.write(MAIN + "\n")
