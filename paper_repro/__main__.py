"""The command paper-repro: one word for each script, then the words of that script.

    paper-repro reproduce cem/table3 scale=smoke     the same as python scripts/reproduce.py cem/table3 scale=smoke
    paper-repro COMMAND --help                       what the command takes

Without the command on the path: python -m paper_repro.  Exit codes are those of the scripts: 0 all done, 1 some cells
failed, diverged, lack their data or differ from their record, 2 wrong usage or config, 130 interrupted.
"""

import importlib
import sys
from collections.abc import Sequence

from paper_repro.base.errors import UsageError, nearest, run_main

SCRIPTS = "paper_repro.scripts"
COMMANDS = {
    "reproduce": "reproduce",
    "train": "train",
    "generate": "generate",
    "think": "think",
    "bench": "bench",
    "data": "prepare_data",
    "report": "report",
    "export": "export",
}
"""The words of the command, each with its script."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    return run_main(_main, arguments)


def _main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h"):
        texts = {
            command: importlib.import_module(f"{SCRIPTS}.{script}").__doc__ for command, script in COMMANDS.items()
        }
        lines = [f"    {command:<10} {(text or '').splitlines()[0]}" for command, text in texts.items()]
        print((__doc__ or "").rstrip(), "", "Commands:", *lines, sep="\n")
        return 0 if arguments else 2
    command, *words = arguments
    if command not in COMMANDS:
        raise UsageError(f"unknown command {command!r}{nearest(command, COMMANDS)}")
    script = f"{COMMANDS[command]}.py"
    module = importlib.import_module(f"{SCRIPTS}.{COMMANDS[command]}")
    sys.argv[0] = f"paper-repro {command}"  # argparse takes it for the name
    module.__doc__ = (module.__doc__ or "").replace(f"python scripts/{script}", script).replace(script, sys.argv[0])
    code: int = module.main(words)
    return code


if __name__ == "__main__":
    sys.exit(main())
