"""What the commands answer to words that a user types by habit: they work, or one line names the right ones."""

import subprocess
from pathlib import Path

import pytest

from paper_repro.base import files
from paper_repro.base.configs import parse
from paper_repro.base.errors import ROOT, run_main
from paper_repro.launchers import start
from paper_repro.scripts import reproduce
from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tables.spec import artifacts
from paper_repro.tests.support.synthetic import ARTIFACT

EXPERIMENT, TABLE = "cem/gaussian_process", "cem/table3"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([TABLE, "--scale", "smoke"], "at scale smoke"),
        ([TABLE, "--seeds"], "--seeds needs a value"),
        ([TABLE, "--sede", "7"], "unknown option --sede (did you mean '--seed'?)"),
        ([TABLE, "lr=0.1"], "did you mean optimizer.lr?"),
        ([TABLE, f"experiment={EXPERIMENT}"], f"train.py {EXPERIMENT} trains that one"),
        (["inner_steps"], "artifact 'inner_steps' lacks its paper: give cem/inner_steps"),
    ],
)
def test_reproduce_answers(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_main(reproduce.main, [*words, "--cells"])
    printed = capsys.readouterr()
    assert answer in printed.out + printed.err
    assert len(printed.err.splitlines()) <= 1


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["cem", "Table1", "table3", "ebt/figB1"], ["cem/table1", TABLE, "ebt/figB1"]),
        (["ebt/figb1"], ["ebt/figB1"]),
        (["results/CEM/table3"], [TABLE]),
        ([str(ROOT / "paper_repro/papers/cem/table3.yaml")], [TABLE]),
        (["results/cem/", "cem/t*3"], artifacts(["cem"])),
    ],
)
def test_artifacts_are_found_as_a_user_writes_them(words: list[str], ids: list[str]) -> None:
    assert artifacts(words) == ids


def test_a_file_of_the_same_name_elsewhere_is_not_taken_for_ours(tmp_path: Path) -> None:
    path = tmp_path / "cem" / "table3.yaml"
    path.parent.mkdir()
    path.write_text(ARTIFACT)
    with pytest.raises(ValueError, match=f"set PAPER_REPRO_PAPERS={tmp_path} and give cem/table3"):
        artifacts([str(path)])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((f"a={path}", path) for path in ("/tmp/Ü", "/a b", "/a=b", "/a,b", "~/(a)", "/it's", '/"a"', "/a[1]{2}")),
        *(("a=[1,2]", [1, 2]), ("a='/x,y'", "/x,y"), ("a=1e-3", 1e-3), ("++a=null", None), (r"a=/x\,y", "/x,y")),
    ],
)
def test_a_path_is_taken_as_it_stands_and_hydras_grammar_holds(text: str, value: object) -> None:
    assert parse(text).value == value


def test_documentation_and_what_needs_no_download_is_prepared_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "DATA", tmp_path)
    monkeypatch.setenv("PAPER_REPRO_DATA", str(tmp_path))
    of_the_paper = plans.make(spec.load("ngpt/table4"), "paper", [0]).cells
    assert all(cell.missing for cell in of_the_paper) and start.commands(of_the_paper) == []  # nothing is downloaded
    words = ["ngpt/table4", "scale=smoke", f"runs={tmp_path / 'runs'}"]
    assert run_main(reproduce.main, words) == 1
    assert "--prepare prepares first what is missing: python scripts/prepare_data.py" in capsys.readouterr().err
    done = list[list[str]]()

    def prepared(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        done.append(command[2:])
        (tmp_path / "documentation-512").mkdir()
        (tmp_path / "documentation-512" / "manifest.json").write_text("{}")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(start.subprocess, "run", prepared)
    monkeypatch.setattr(reproduce, "_cells", lambda plan, *_: int(any(cell.missing for cell in plan.cells)))
    assert run_main(reproduce.main, [*words, "--prepare"]) == 0
    assert done == [["documentation", "--download", "--vocabulary", "512"]]
