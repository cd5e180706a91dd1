"""Commands in environments that harm, with output that takes nothing: no traceback, and the exit codes of the docs."""

import os
import subprocess
import sys

import pytest

from paper_repro.base.errors import ROOT

NOTEBOOK = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "JPY_PARENT_PID": "1",
    "PYTHONIOENCODING": "ascii",
    "PYTHONWARNINGS": "error",
    "HOME": "/dev/null",
    "TMPDIR": "/dev/null/none",
    "XDG_CACHE_HOME": "/dev/null/cache",
}
"""A notebook's variables, an ASCII terminal, warnings that are errors, and folders that cannot be."""
COMMANDS = [
    (["train.py", "cem/none"], 2, False),
    (["train.py", "--list"], 0, True),
    (["reproduce.py", "cem/none"], 2, False),
    (["reproduce.py", "--list"], 0, True),
    (["generate.py", "none"], 2, False),
    (["think.py", "none", "--prompt", "a"], 2, False),
    (["compare.py", "none", "other"], 2, False),
    (["export.py", "none", "--to", "/dev/null/none"], 2, False),
    (["prepare_data.py", "--help"], 0, True),
    (["report.py", "from=/dev/null/none"], 2, False),
    (["inspect_model.py", "--help"], 0, True),
    (["bench.py", "none"], 2, False),
]
"""Words, exit code, and whether something is printed."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "failed"),
    [("", 0), (">&-", 1), (">/dev/full", 1), ("2>&-", 0), ("<&- >&- 2>&-", 1), ("| true", 0)],
)
def test_no_command_ends_with_a_traceback(output: str, failed: int) -> None:
    environment = {**os.environ, **NOTEBOOK}
    environment.pop("TERM", None)
    started = []
    for words, code, prints in COMMANDS:
        line = f'"$0" "$@" {output}; exit ${{PIPESTATUS[0]}}'
        command = ["bash", "-c", line, sys.executable, str(ROOT / "scripts" / words[0]), *words[1:]]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="ascii"
        )
        started.append((process, words, failed if prints else code))
    for process, words, code in started:
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, (words, out, err)
        assert "Traceback" not in out + err and err.count("\n") <= 1, (words, err)
        if code and "2>" not in output:
            assert err.startswith("error: "), words
