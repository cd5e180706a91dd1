"""The commands as a user types them, the wrong ones too."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paper_repro.base.command_line import ROOT


def _run(script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False, env={**os.environ, **environment}
    )


@pytest.fixture
def here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same script with the same words, without the seconds that a process needs to import torch."""

    def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "scripts" / script), *words]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            runpy.run_path(command[0], run_name="__main__")
        assert isinstance(end.value.code, int)
        return subprocess.CompletedProcess(command, end.value.code, *capsys.readouterr())

    return run


def test_list_shows_every_artifact_with_scales_and_data() -> None:
    found = _run("reproduce.py", "--list")
    assert found.returncode == 0
    for word in ("cem/table3", "ebt/tableD1", "smoke, cpu, gpu, paper", "generated", "reference", "yours"):
        assert word in found.stdout


def test_exact_artifact_runs_under_any_scale_word(tmp_path: Path) -> None:
    found = _run("reproduce.py", "ebt/tableD1", "scale=smoke", f"runs={tmp_path}")
    assert found.returncode == 0, found.stderr
    assert "| 8.97 %  | 8.97 %  | reproduced" in found.stdout
    assert {path.name for path in (tmp_path / "ebt/tableD1/exact").iterdir()} == {
        "table.md", "table.csv", "table.tex", "table.json", "figure.csv", "figure.png", "figure.svg"
    }  # fmt: skip


def test_several_artifacts_in_one_call_share_one_exit_code(tmp_path: Path) -> None:
    assert _run("reproduce.py", "ebt/tableD1", "cem/table3", "--render", f"runs={tmp_path}").returncode == 0
    assert _run("reproduce.py", "ebt/tableD1", "cem/tableX", "--render", f"runs={tmp_path}").returncode == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cem/tabel3"], r"unknown artifact 'cem/tabel3' \(did you mean 'cem/table3'\?\)"),
        (["cem/table3", "scale=huge"], "cem/table3 has no scale 'huge'"),
        (["cem/table3", "data.kernle=rbf"], r"unknown key 'data.kernle' \(did you mean 'data.kernel'\?\)"),
        (["cem/table3", "training.steps=many"], "training.steps takes a whole number"),
        (["cem/table3", "training.steps=1.5"], "training.steps takes a whole number"),
        (["cem/table3", "seeds=0,1,1"], "seed 1 is given twice"),
        (["cem/table3", "seeds=zero"], "whole numbers"),
        (["cem/table3", "seeds=-1"], "negative"),
        (["cem/table3", "runs=a", "runs=b"], "runs is given twice"),
        (["cem/table3", "runs="], "runs= needs a value"),
        (["cem/table3", "--rendr"], r"unknown option --rendr \(did you mean '--render'\?\)"),
        (["cem/table3", "--render", "--publish"], "exclude each other"),
        (["--plan"], "which artifact"),
        (["cem/table3", "task._target_=os.system"], "is refused: only classes of paper_repro"),
        (["cem/table3", "model=cem/gp_plane", "--plan"], "did you mean 'cem/gp_plain'"),
        (["cem/table3", "model.block.num_steps=2", "--plan"], "unknown key 'model.block.num_steps'"),
        (["cem/table3", "--publish", "training.steps=5"], "an altered run is no reference"),
    ],
)
def test_wrong_use_is_one_clear_line_and_exit_code_2(
    words: list[str], message: str, here: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    if not any(word.startswith("runs") for word in words):
        words = [*words, f"runs={tmp_path / 'runs'}"]
    _assert_refused(here("reproduce.py", *words), message, tmp_path)


def _assert_refused(found: subprocess.CompletedProcess[str], message: str, folder: Path) -> None:
    assert found.returncode == 2, found.stdout + found.stderr
    assert re.search(message, found.stderr, re.IGNORECASE) and found.stderr.startswith("error: ")
    assert len(found.stderr.strip().splitlines()) == 1 and "Traceback" not in found.stderr
    assert not list(folder.glob("runs/cells/*"))


def test_processes_of_their_own_refuse_in_the_same_way(tmp_path: Path) -> None:
    runs = f"runs={tmp_path / 'runs'}"
    _assert_refused(_run("reproduce.py", "cem/tabel3", runs), "did you mean 'cem/table3'", tmp_path)
    _assert_refused(_run("train.py", "cem/gaussian_process", "model.width=0", runs), "width", tmp_path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=-0.1", "learning rate"),
        ("model.width=0", "width"),
        ("data.kernel=rfb", "kernel"),
        ("data.batch_size=0", "batch_size"),
        ("training.steps=0", "steps"),
        ("machine.stack.most=0", "most"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_before_anything_is_trained(
    override: str, message: str, here: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    _assert_refused(here("train.py", "cem/gaussian_process", override, f"runs={tmp_path / 'runs'}"), message, tmp_path)


def test_a_typo_in_an_artifact_names_file_line_and_the_nearest_key(tmp_path: Path) -> None:
    text = (ROOT / "paper_repro/papers/ebt/tableD1.yaml").read_text().replace("\nnotes:", "\nnote:")
    path = tmp_path / "ebt" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(text)
    line = text.splitlines().index("note:") + 1
    found = _run("reproduce.py", "ebt/mine", "--render", f"runs={tmp_path / 'runs'}", PAPER_REPRO_PAPERS=str(tmp_path))
    assert found.returncode == 2
    assert f"mine.yaml:{line}: unknown key 'note' (did you mean 'notes'?)" in found.stderr


def test_publish_refuses_cells_without_a_result(tmp_path: Path) -> None:
    found = _run("reproduce.py", "ebt/tableD1", "--publish", f"runs={tmp_path}")
    assert found.returncode == 2 and "10 of 10 cells have no result" in found.stderr


def test_help_names_every_setting_and_exit_code() -> None:
    found = _run("reproduce.py", "--help")
    for word in ("scale=", "seeds=", "runs=DIR", "--list", "--plan", "--render", "--publish", "Exit codes: 0"):
        assert word in found.stdout
