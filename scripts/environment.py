"""Sees to it that a script runs in the repository's environment, with the code of its own checkout; each script runs
this file first.

A Python without our package and its needs is replaced by that of .venv, in the same process, with the same words.
Where there is no .venv, one line says how to build it.  A git worktree without a .venv of its own uses that of the main
checkout, and puts its own code first, for the processes that it starts, too.  Any other Python that would import the
package of another checkout is refused: its code, and its commit in every record, would not be those of the script.
Python 3.6 must be able to read this file.

    python3 scripts/environment.py WORDS    run the environment's Python with these words, and the code of this checkout
    python3 scripts/environment.py          print the main checkout if its environment is used
"""

import importlib.util
import os
import shlex
import sys
from pathlib import Path

ROOT = Path(os.path.abspath(__file__)).parents[1]  # noqa: PTH100


def main_checkout():  # type: ignore[no-untyped-def]
    """Return the main checkout of a git worktree that has no environment of its own; None elsewhere."""
    try:
        kind, _, path = os.fsdecode((ROOT / ".git").read_bytes()).strip().partition(": ")
        folder = ROOT / path
        common = (folder / os.fsdecode((folder / "commondir").read_bytes()).strip()).resolve()
    except OSError:
        return None
    own, main = ROOT / ".venv", common.parent
    has_own = own.exists() and own.resolve() != (main / ".venv").resolve()
    is_worktree = kind == "gitdir" and common.name == ".git" and not has_own
    return main if is_worktree and os.pathsep not in str(ROOT) else None  # no PYTHONPATH can hold a path with a colon


MAIN = main_checkout()
VENV = (MAIN or ROOT) / ".venv"
PYTHON = VENV / "bin" / "python"
BUILD = "make -C " + shlex.quote(str(MAIN or ROOT)) + " environment"


def other():  # type: ignore[no-untyped-def]
    """Return the folder of the other checkout whose package this Python would import; None where it is ours."""
    spec = importlib.util.find_spec("paper_repro")
    places = [Path(place).resolve() for place in (spec and spec.submodule_search_locations) or ()]
    ours = ROOT.resolve() / "paper_repro"
    if not places or ours in places or not ours.is_dir():
        return None
    folder = places[0].parent
    return folder if (folder / "scripts" / "environment.py").is_file() else None


def own_code_first() -> None:
    """Have this process, and those that it starts, import the code of this checkout."""
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def refuse(message: str) -> None:
    """End with one line and exit code 2."""
    sys.stderr.write("error: " + message + "\n")
    sys.exit(2)


def enter(words: "list[str]") -> None:
    """Return in a Python that has the scripts' needs; else become it, or end with one line and exit code 2."""
    if sys.version_info < (3, 11) or not all(map(importlib.util.find_spec, ("paper_repro", "tabulate"))):
        become(words, inside=VENV.is_dir() and Path(sys.prefix).resolve() == VENV.resolve())
    folder = other()
    if folder and folder == MAIN:
        own_code_first()
    elif folder:
        command = " ".join(map(shlex.quote, [str(PYTHON), words[0]]))
        refuse(
            f"this Python runs the code of {folder}, the script is that of {ROOT}; use its environment: "
            f"{BUILD}, then {command}; or set PYTHONPATH={shlex.quote(str(ROOT))}"
        )
    from paper_repro.base import errors

    errors.prepare()  # before anything else is imported


def become(words: "list[str]", inside: bool = False) -> None:
    """Go on as the environment's Python with these words, or end with one line and exit code 2."""
    if PYTHON.exists() and not inside:
        if MAIN:
            own_code_first()
        os.execv(str(PYTHON), [str(PYTHON), *words])
    what = "is not whole" if inside else f"lacks what this command needs, and there is no {PYTHON}"
    build = f"build the environment: {BUILD}, with PYTHON=python3.12 where python3 is older than 3.11"
    refuse(f"{VENV if inside else sys.executable} {what}; {build}")


if __name__ == "__main__":
    if "SCRIPT" in globals():  # given by the script
        enter([globals()["SCRIPT"], *sys.argv[1:]])
    elif sys.argv[1:]:
        become(sys.argv[1:])
    elif MAIN and PYTHON.exists():
        sys.stdout.write(str(MAIN) + "\n")
