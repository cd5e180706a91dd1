"""The command paper-repro: one word for each script."""

import sys

import pytest

from paper_repro import __main__ as command
from paper_repro.base.configs import experiments
from paper_repro.base.errors import ROOT


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
