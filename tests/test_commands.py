"""The commands as a user types them, the wrong ones too."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import ROOT
from paper_repro.cells.records import Record, write

Run = Callable[..., subprocess.CompletedProcess[str]]


def _run(script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *words]
    own = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=own)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The same script with the same words, without the seconds that a process needs to import torch."""

    def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "scripts" / script), *words]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            runpy.run_path(command[0], run_name="__main__")
        assert isinstance(end.value.code, int)
        return subprocess.CompletedProcess(command, end.value.code, *capsys.readouterr())

    return run


def test_an_exact_artifact_runs_under_any_scale_word_and_closes_with_its_claims(tmp_path: Path) -> None:
    found = _run("reproduce.py", "ebt/tableD1", "scale=smoke", f"runs={tmp_path}")
    assert found.returncode == 0, found.stderr
    assert "| 8.97 %  | 8.97 %  | fitted" in found.stdout  # one reading of several gives it
    folder = tmp_path / "ebt/tableD1/exact"
    tables = {f"table.{end}" for end in ("md", "csv", "tex", "json")}
    assert {path.name for path in folder.iterdir()} == tables | {f"figure.{end}" for end in ("csv", "png", "svg")}
    last = found.stderr.strip().splitlines()[-1]
    where = re.escape(str(folder / "table.md"))
    assert re.fullmatch(rf"ebt/tableD1: 10 cells, \d+ s; claims: \d .*; look at {where}", last), last


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cem/tabel3"], r"unknown artifact 'cem/tabel3' \(did you mean 'cem/table3'\?\)"),
        (["cem/table3", "scale=huge"], "cem/table3 has no scale 'huge'"),
        (["cem/table3", "data.kernle=rbf"], r"unknown key 'data.kernle' \(did you mean 'data.kernel'\?\)"),
        (["cem/table3", "training.steps=1.5"], "training.steps takes a whole number"),
        (["cem/table3", "seeds=zero"], "whole numbers"),
        (["cem/table3", "sedes=0"], r"unknown setting sedes= \(did you mean 'seeds'\?\)"),
        (["cem/table3", "--rendr"], r"unknown option --rendr \(did you mean '--render'\?\)"),
        (["cem/table3", "--render", "--publish"], "exclude each other"),
        (["cem/table3", "--published", "--render"], "--published goes with a run"),
        (["--plan"], "which artifact"),
        (["cem/table3", "--publish", "training.steps=5"], "an altered run is no reference"),
        (["ebt/tableD1", "ngpt/fig7", "scale=nothing"], "nothing"),  # the last is checked before the first is run
        (["ebt/tableD1", "--render", "runs=absent"], "runs=absent: there is no such folder"),
    ],
)
def test_wrong_use_is_one_clear_line_and_exit_code_2(words: list[str], message: str, here: Run, tmp_path: Path) -> None:
    if not any(word.startswith("runs") for word in words):
        words = [*words, f"runs={tmp_path / 'runs'}"]
    _assert_refused(here("reproduce.py", *words), message, tmp_path)


@pytest.mark.slow
def test_a_variable_names_the_folder_of_runs_where_no_word_does(
    here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PAPER_REPRO_RUNS", str(tmp_path / "mine"))
    for folder, words in (("mine", []), ("other", [f"runs={tmp_path / 'other'}"])):
        assert here("reproduce.py", "ebt/tableD1", *words).returncode == 0
        assert (tmp_path / folder / "ebt" / "tableD1" / "exact" / "table.md").exists()
    (tmp_path / "file").touch()
    monkeypatch.setenv("PAPER_REPRO_RUNS", str(tmp_path / "file"))
    _assert_refused(here("reproduce.py", "ebt/tableD1"), "PAPER_REPRO_RUNS=.*: this is no folder", tmp_path)


def _assert_refused(found: subprocess.CompletedProcess[str], message: str, folder: Path) -> None:
    assert found.returncode == 2, found.stdout + found.stderr
    assert re.search(message, found.stderr, re.IGNORECASE) and found.stderr.startswith("error: ")
    assert len(found.stderr.strip().splitlines()) == 1 and "Traceback" not in found.stderr
    assert not list(folder.glob("runs/cells/*"))


def test_a_typo_in_an_artifact_names_file_line_and_the_nearest_key(tmp_path: Path) -> None:
    text = (ROOT / "paper_repro/papers/ebt/tableD1.yaml").read_text().replace("\nnotes:", "\nnote:")
    path = tmp_path / "ebt" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(text)
    line = text.splitlines().index("note:") + 1
    found = _run("reproduce.py", "ebt/mine", "--render", f"runs={tmp_path / 'runs'}", PAPER_REPRO_PAPERS=str(tmp_path))
    assert found.returncode == 2
    assert f"mine.yaml:{line}: unknown key 'note' (did you mean 'notes'?)" in found.stderr


TORCH = frozenset({"torch", "lightning"})
READY = [
    (["reproduce.py", "--list"], ""),
    (["reproduce.py", "cem/tabel3"], "unknown artifact"),
    (["bench.py", "cem_atn"], "unknown bench 'cem_atn' (did you mean 'cem_attn'?)"),
    (["generate.py", "{folder}/empty", "--seed", "-1"], "--seed: -1: give a number from 0"),
    (["inspect_model.py", "{folder}/empty"], "no record.json"),
    (["think.py", "--prompt", "ROMEO:", "{folder}/damaged"], "record.json"),
    (["export.py", "--to", "{folder}/new", "{folder}/weightless"], "weights"),
]
"""Calls that are answered, or refused with a message, at once."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder that is empty, one whose record is damaged, and a finished cell without its weights."""
    for name in ("empty", "damaged", "weightless"):
        (tmp_path / name).mkdir()
    (tmp_path / "damaged" / "record.json").write_text("{")
    config: dict[str, Any] = {"model": {}, "module": {}, "seed": 0}
    record = Record("0123456789abcdef", "finished", 0, config, {}, {}, None, None, 0.0, None, "")
    write(tmp_path / "weightless" / "record.json", record)
    return tmp_path


def _watched(script: str, *words: str, heavy: frozenset[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that names what it has imported of ``heavy`` and then fails."""
    code = (
        "import runpy, sys\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n    code = end.code\n"
        f"heavy = {set(heavy)} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    line = [sys.executable, "-c", f"import sys; sys.argv = sys.argv[1:]\n{code}"]
    command = [*line, str(ROOT / "scripts" / script), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "message"), READY)
def test_what_needs_no_computing_imports_nothing_that_takes_long(words: list[str], message: str, folder: Path) -> None:
    script, *given = (word.format(folder=folder) for word in words)
    found = _watched(script, *given, heavy=TORCH | {"matplotlib", "hydra", "omegaconf", "pandas", "scipy"})
    assert found.returncode == (2 if message else 0), found.stderr[-300:]
    assert found.stderr.count("\n") == (1 if message else 0) and message.format(folder=folder) in found.stderr


@pytest.mark.slow
def test_a_second_plan_needs_no_torch(tmp_path: Path) -> None:
    words = ["cem/table3", "--plan", "scale=smoke", f"runs={tmp_path}"]
    first = _run("reproduce.py", *words)
    assert first.returncode == 0, first.stderr
    second = _watched("reproduce.py", *words, heavy=TORCH)
    assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr


def test_a_plan_counts_with_the_speed_of_its_machine_and_warns_of_a_slow_one(tmp_path: Path) -> None:
    from paper_repro.cells.estimates import UNMEASURED_GPU_RATE, processor_flags, slow_products, unmeasured_rate

    config = {"machine": {"accelerator": "gpu", "devices": 8}}
    assert unmeasured_rate(config) == 8 * UNMEASURED_GPU_RATE > 1000 * unmeasured_rate({"machine": {}})
    narrow = {"machine": {"accelerator": "cpu"}, "training": {"precision": "bf16-mixed"}}
    old = frozenset({"fma", "avx2"})
    assert "training.precision=32-true" in (slow_products(narrow, old) or "")
    assert slow_products({"training": {"precision": "32-true"}}, old) is None
    assert slow_products(narrow, old | {"avx512f"}) is None
    information = tmp_path / "cpuinfo"
    assert processor_flags(information) == frozenset()
    information.write_text("processor\t: 0\nflags\t\t: fma avx2\n\nprocessor\t: 1\nflags\t\t: none\n")
    assert processor_flags(information) == old


def test_cells_lead_from_a_row_to_its_record(here: Run) -> None:
    found = here("reproduce.py", "cem/table3", "--cells", "seeds=0", "scale=cpu")
    assert found.returncode == 0
    (row,) = [line for line in found.stdout.splitlines() if "kernel=rbf, model=t2 " in line]
    identity, _, seed, status, code, path = re.split(r" {2,}", row.strip())
    assert (identity, seed, status, code) == ("95071d22e59ea75a", "0", "finished (reference)", "not recorded")
    assert path.endswith(f"results/cells/{identity}/record.json")
    cells = re.findall("^[0-9a-f]{16} ", found.stdout, re.MULTILINE)
    assert len(cells) == 40, "30 settings, and two baselines of 5 kernels"


def test_cells_without_a_result_or_without_data_say_so(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = here("reproduce.py", "cem/table3", "--cells", "training.steps=7", f"runs={tmp_path}")
    of_models = [line for line in found.stdout.splitlines() if "model=" in line]
    assert len(of_models) == 120 and all(re.search(r" not run +- +-$", line) for line in of_models)
    monkeypatch.setattr("paper_repro.base.files.DATA", tmp_path)
    found = here("reproduce.py", "ngpt/fig7", "--cells", "seeds=77", f"runs={tmp_path}")
    assert found.returncode == 0 and "no data" in found.stdout and "run: python scripts/prepare_data.py" in found.stdout


def test_a_paper_or_a_pattern_names_all_of_its_artifacts(here: Run) -> None:
    def listed(*words: str) -> list[str]:
        return re.findall(r"^(\w+/\w+) ", here("reproduce.py", "--list", *words).stdout, re.MULTILINE)

    everything = listed()
    assert listed("cem") == listed("cem/*") == listed("cem/") == [name for name in everything if name[:4] == "cem/"]
    assert listed("ebt/table?", "cem/table3", "cem/table3") == ["cem/table3", *(f"ebt/table{n}" for n in (2, 3, 4, 5))]
