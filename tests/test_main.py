"""The command paper-repro: one word for each script, and what bash completes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paper_repro import __main__ as command
from paper_repro.base.configs import experiments
from paper_repro.base.errors import ROOT
from paper_repro.tables import spec


def test_every_command_is_a_script_with_a_main_and_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    told = capsys.readouterr().out
    for name, script in command.COMMANDS.items():
        assert "def main(" in (ROOT / "scripts" / f"{script}.py").read_text(), name
        assert f"\n    {name} " in told
    assert command.main([]) == 2


def test_a_command_gives_its_words_and_its_exit_code_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    assert command.main(["reproduc", "cem/table3"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'reproduc' (did you mean 'reproduce'?)\n"
    assert command.main(["reproduce", "cem/tabel3"]) == 2
    assert "did you mean 'cem/table3'" in capsys.readouterr().err
    assert command.main(["train", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(experiments())
    assert command.main(["reproduce", "--help"]) == 0
    told = capsys.readouterr().out
    assert "paper-repro reproduce cem/table3 scale=smoke" in told and "reproduce.py" not in told


def test_completions_are_what_the_command_takes_in_that_place() -> None:
    names = [name for name in spec.find() if name.startswith("cem/t")]
    assert command.completions(["reproduce", "cem/t"]) == names
    assert command.completions(["reproduce", "cem/table3", "ng"])[0] == "ngpt"
    assert command.completions(["train", "nrgpt/"]) == [name for name in experiments() if name.startswith("nrgpt/")]
    assert command.completions(["think", "--st"]) == ["--step-size", "--steps"]
    assert command.completions(["bench", "cem_"]) == ["cem_attn", "cem_memory"]
    assert command.completions(["reproduce", "cem/table3", "scale", "=", "s"]) == ["smoke"]
    assert command.completions(["generate", "runs/c"]) == [], "bash completes names of files"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_asks_the_command(tmp_path: Path) -> None:
    program = tmp_path / "paper-repro"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m paper_repro "$@"\n')
    program.chmod(0o755)
    asked = (
        'eval "$(paper-repro completion)"; complete -p paper-repro\n'
        "compopt() { echo no space; }\n"
        "COMP_WORDS=(paper-repro reproduce cem/tab); COMP_CWORD=2; _paper_repro; echo ${COMPREPLY[@]}\n"
        "COMP_WORDS=(paper-repro reproduce cem/table3 sca); COMP_CWORD=3; _paper_repro; echo ${COMPREPLY[@]}\n"
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=False, env=environment)
    lines = found.stdout.splitlines()
    assert lines == [
        "complete -o default -F _paper_repro paper-repro",
        "cem/table1 cem/table2 cem/table3",
        "no space",
        "scale=",
    ]
