"""The commands as a user types them, the wrong ones too."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import ROOT
from paper_repro.cells.records import Record, write

Command = Callable[..., tuple[int, str, str]]


def _run(script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *words]
    own = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=own)


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
def test_wrong_use_is_one_clear_line_and_exit_code_2(
    words: list[str], message: str, call: Command, tmp_path: Path
) -> None:
    if not any(word.startswith("runs") for word in words):
        words = [*words, f"runs={tmp_path / 'runs'}"]
    code, _, err = call("reproduce.py", *words)
    assert code == 2 and re.search(message, err, re.IGNORECASE) and err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1 and not list(tmp_path.glob("runs/cells/*"))


TORCH = frozenset({"torch", "lightning"})
READY = [
    (["reproduce.py", "--list"], ""),
    (["reproduce.py", "cem/tabel3"], "unknown artifact"),
    (["bench.py", "cem_atn"], "unknown bench 'cem_atn' (did you mean 'cem_attn'?)"),
    (["generate.py", "{folder}/empty", "--seed", "-1"], "--seed: -1: give a number from 0"),
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


def test_a_plan_counts_with_the_speed_of_its_machine_and_warns_of_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paper_repro.cells import estimates
    from paper_repro.cells.estimates import UNMEASURED_GPU_RATE, slow_products, unmeasured_rate

    config = {"machine": {"accelerator": "gpu", "devices": 8}}
    assert unmeasured_rate(config) == 8 * UNMEASURED_GPU_RATE > 1000 * unmeasured_rate({"machine": {}})
    narrow = {"machine": {"accelerator": "cpu"}, "training": {"precision": "bf16-mixed"}}
    information = tmp_path / "cpuinfo"
    monkeypatch.setattr(estimates, "CPUINFO", information)
    assert slow_products(narrow) is None, "nobody can know"
    information.write_text("processor\t: 0\nflags\t\t: fma avx2\n\nprocessor\t: 1\nflags\t\t: avx512f\n")
    assert "training.precision=32-true" in (slow_products(narrow) or "")
    assert slow_products({"training": {"precision": "32-true"}}) is None
    information.write_text("processor\t: 0\nflags\t\t: fma avx2 avx512f\n")
    assert slow_products(narrow) is None


def test_cells_lead_from_a_row_to_its_record(call: Command) -> None:
    code, out, _ = call("reproduce.py", "cem/table3", "--cells", "seeds=0", "scale=cpu")
    assert code == 0
    (row,) = [line for line in out.splitlines() if "kernel=rbf, model=t2 " in line]
    identity, _, seed, status, made_by, path = re.split(r" {2,}", row.strip())
    assert (identity, seed, status, made_by) == ("95071d22e59ea75a", "0", "finished (reference)", "not recorded")
    assert path.endswith(f"results/cells/{identity}/record.json")
    cells = re.findall("^[0-9a-f]{16} ", out, re.MULTILINE)
    assert len(cells) == 40, "30 settings, and two baselines of 5 kernels"


def test_cells_without_a_result_or_without_data_say_so(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = call("reproduce.py", "cem/table3", "--cells", "training.steps=7", f"runs={tmp_path}")
    of_models = [line for line in out.splitlines() if "model=" in line]
    assert len(of_models) == 120 and all(re.search(r" not run +- +-$", line) for line in of_models)
    monkeypatch.setattr("paper_repro.base.files.DATA", tmp_path)
    code, out, _ = call("reproduce.py", "ngpt/fig7", "--cells", "seeds=77", f"runs={tmp_path}")
    assert code == 0 and "no data" in out and "run: python scripts/prepare_data.py" in out


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
    (["export.py", "none", "--to", "/dev/null/none"], 2, False),
    (["prepare_data.py", "--help"], 0, True),
    (["report.py", "from=/dev/null/none"], 2, False),
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
