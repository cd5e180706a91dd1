"""The command paper-repro: one word for each script, then the words of that script.

    paper-repro reproduce cem/table3 scale=smoke     the same as python scripts/reproduce.py cem/table3 scale=smoke
    paper-repro COMMAND --help                       what the command takes

Without the command on the path: python -m paper_repro.  Exit codes are those of the scripts: 0 all done, 1 some cells
failed, diverged, lack their data or differ from their record, 2 wrong usage or config, 130 interrupted.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from paper_repro.base.errors import UsageError, nearest, run_main

SCRIPTS = "paper_repro.scripts"
COMMANDS = {
    "reproduce": "reproduce",
    "train": "train",
    "generate": "generate",
    "inspect": "inspect_model",
    "think": "think",
    "bench": "bench",
    "data": "prepare_data",
    "report": "report",
    "compare": "compare",
    "export": "export",
}
"""The words of the command, each with its script."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    return run_main(_main, arguments)


def _main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h"):
        print(usage())
        return 0 if arguments else 2
    command, *words = arguments
    if command not in COMMANDS:
        raise UsageError(f"unknown command {command!r}{nearest(command, COMMANDS)}")
    script = COMMANDS[command]
    module = importlib.import_module(f"{SCRIPTS}.{script}")
    sys.argv[0] = f"paper-repro {command}"  # argparse takes it for the name
    module.__doc__ = (
        (module.__doc__ or "")
        .replace(f"python scripts/{script}.py", f"{script}.py")
        .replace(f"{script}.py", sys.argv[0])
    )
    code: int = module.main(words)
    return code


def usage() -> str:
    """Return the help: what this module says, and a line for each command."""
    lines = [f"    {command:<10} {_text(command).splitlines()[0]}" for command in COMMANDS]
    return "\n".join([(__doc__ or "").rstrip(), "", "Commands:", *lines])


def _text(command: str) -> str:
    """Return the docstring of a command's script, which is not imported: some take seconds."""
    found = importlib.util.find_spec(f"{SCRIPTS}.{COMMANDS[command]}")
    assert found is not None and found.origin is not None
    return ast.get_docstring(ast.parse(Path(found.origin).read_text(encoding="utf-8"))) or ""


if __name__ == "__main__":
    sys.exit(main())
