"""The command paper-repro: one word for each script, then the words of that script.

    paper-repro reproduce cem/table3 scale=smoke     the same as python scripts/reproduce.py cem/table3 scale=smoke
    paper-repro COMMAND --help                       what the command takes
    eval "$(paper-repro completion)"                 let bash complete commands, artifacts, experiments and options

Without the command on the path: python -m paper_repro.  Exit codes are those of the scripts: 0 all done, 1 some cells
failed, diverged, lack their data or differ from their record, 2 wrong usage or config, 130 interrupted.
"""

import ast
import importlib
import importlib.util
import re
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
COMPLETION, COMPLETE = "completion", "--complete"
BASH = """_paper_repro() {
    local IFS=$'\\n'
    COMPREPLY=($(paper-repro --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _paper_repro paper-repro"""
SETTINGS = {"reproduce": ("scale=", "seeds=", "runs="), "train": ("seed=", "runs="), "report": ("to=", "from=")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    return run_main(_main, arguments)


def _main(arguments: Sequence[str]) -> int:
    if arguments[:1] == [COMPLETE]:
        print("\n".join(completions(arguments[1:])))
        return 0
    if not arguments or arguments[0] in ("--help", "-h"):
        print(usage())
        return 0 if arguments else 2
    command, *words = arguments
    if command == COMPLETION:
        if words not in ([], ["bash"]):
            raise UsageError(f"completion {' '.join(words)}: there is that of bash alone")
        print(BASH)
        return 0
    if command not in COMMANDS:
        raise UsageError(f"unknown command {command!r}{nearest(command, [*COMMANDS, COMPLETION])}")
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


def completions(words: Sequence[str]) -> list[str]:
    """Complete the last of the words after ``paper-repro``, as bash splits them: ``scale=c`` is three words."""
    *before, last = words or [""]
    if not before:
        return _beginning(last, [*COMMANDS, COMPLETION, "--help"])
    command = before[0]
    if last == "=" or before[-1] == "=":
        key = before[-1] if last == "=" else before[-2]
        if (command, key) != ("reproduce", "scale"):
            return []
        from paper_repro.tables.axes import SCALES

        return _beginning(last.removeprefix("="), list(SCALES))
    if command not in COMMANDS:
        return []
    if last.startswith("-"):
        source = _path(command).read_text(encoding="utf-8")
        return _beginning(last, sorted({*re.findall(r"(?<![\w-])--[a-z][a-z-]*", source), "--help"}))
    return _beginning(last, [*_names(command), *SETTINGS.get(command, ())])


def _beginning(start: str, words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith(start)]


def _names(command: str) -> list[str]:
    if command == "reproduce":
        from paper_repro.tables import spec

        found = spec.find()
        return [*dict.fromkeys(name.partition("/")[0] for name in found), *found]
    if command == "train":
        from paper_repro.base.configs import experiments

        return experiments()
    if command == "bench":
        folder = _path(command).with_name("benches")
        return sorted(path.stem for path in folder.glob("*.py"))
    return []


def _text(command: str) -> str:
    """Return the docstring of a command's script, which is not imported: some take seconds."""
    return ast.get_docstring(ast.parse(_path(command).read_text(encoding="utf-8"))) or ""


def _path(command: str) -> Path:
    found = importlib.util.find_spec(f"{SCRIPTS}.{COMMANDS[command]}")
    assert found is not None and found.origin is not None
    return Path(found.origin)


if __name__ == "__main__":
    sys.exit(main())
