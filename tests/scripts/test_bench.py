"""The bench command, the page that shows what it wrote, and benches at a tiny size."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.base.files import CodeState
from paper_repro.cells.records import SEAL, processor_name, seal
from paper_repro.scripts import bench, results_index, side_by_side
from paper_repro.scripts.benches import commands, ebt
from paper_repro.scripts.side_by_side import Comparison
from paper_repro.site import files


def made_up(_: torch.device) -> Iterator[Any]:
    yield Comparison("small", "ms", [2.0, 1.0, 3.0], [4.0, 5.0, 3.0], "definition", 1e-7, goal=1.5, teraflops=0.25)
    row = SimpleNamespace(kind="programs", line=lambda: "kernel: 3 blocks", record=lambda: {"blocks": 3})
    yield from (row, row)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Run the bench above as if from committed code, and return its file; ``capsys`` has what it prints."""
    monkeypatch.setattr(ebt, "made_up", made_up, raising=False)
    monkeypatch.setitem(bench.BENCHES, "made_up", "ebt")
    monkeypatch.setattr(bench, "read_code_state", lambda: CodeState("0123456789abcdef", False))
    path = tmp_path / "results" / "made_up.json"
    path.parent.mkdir()
    assert bench.main(["made_up", "--json", str(path)]) == 0
    return path


def test_rows_of_both_kinds_are_printed_written_sealed_and_shown(written, capsys):
    assert capsys.readouterr().out.splitlines()[1:] == [
        "small: 2.00x, goal 1.5x; ms: ours 2.000 (1.000 to 3.000), definition 4.000 (3.000 to 5.000); "
        "relative error 1.0e-07; 0.25 TFLOP/s",
        "kernel: 3 blocks",
        "kernel: 3 blocks",
    ]
    found = json.loads(written.read_text())
    assert found.pop(SEAL) == seal(found)
    assert (found["commit"], found["dirty"]) == ("0123456789abcdef", False)
    assert found["device"] == f"cpu: {processor_name()}"
    assert found["bench"] == "made_up" and found["programs"] == [{"blocks": 3}] * 2
    (comparison,) = found["comparisons"]
    assert (comparison["ratio"], comparison["rounds"]) == (2.0, side_by_side.ROUNDS)
    line = next(line for line in results_index._benches(written.parent).splitlines() if "small" in line)
    assert line.endswith("| 0123456789 |")
    assert files.bench_commit({**found, "dirty": True}) == "0123456789 with uncommitted changes"


def test_every_bench_is_in_its_file() -> None:
    found = {name: import_module(f"{bench.FOLDER}.{file}") for name, file in bench.BENCHES.items()}
    assert all(callable(getattr(module, name)) for name, module in found.items())


def test_an_edited_bench_is_refused_and_one_from_before_seals_is_read(written: Path) -> None:
    path = written
    path.write_text(path.read_text().replace('"ratio": 2.0', '"ratio": 3.0'))
    with pytest.raises(UsageError, match=f"{path}.* does not fit its content"):
        results_index._benches(path.parent)
    content = json.loads(path.read_text())
    old = {key: value for key, value in content.items() if key not in (SEAL, "commit", "dirty")}
    path.write_text(json.dumps(old))
    assert "commit unknown" in results_index._benches(path.parent)


@pytest.mark.slow
def test_commands_are_called_as_processes_and_held_against_their_goals() -> None:
    rows = {row.case: row for row in commands.commands(None, rounds=1, artifacts=["cem/table3"])}
    assert {"--list", "--plan for the first time", "--plan once more"} < rows.keys()
    assert {"cem/table3 at scale smoke", "cem/table3 rendered"} < rows.keys()
    assert all(0.02 < row.processor[0] < 300 and len(row.processor) == len(row.wall) == 1 for row in rows.values())
    smoke = rows["cem/table3 at scale smoke"]
    assert smoke.command == "scripts/reproduce.py cem/table3 scale=smoke machine.workers=1"
    assert smoke.record()["met"] == (smoke.processor[0] < smoke.goal == commands.SMOKE)


@pytest.mark.slow
def test_ebts_step_in_both_streams_stands_beside_transformer_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "ROUNDS", 1)
    monkeypatch.setattr(ebt, "ON_CPU", (8, 2, 2, 13, 16, 4, 5.0))
    monkeypatch.setattr(ebt, "CASES", ebt.CASES[3:])
    found = list(ebt.ebt_step(torch.device("cpu")))
    units = ["ms per step", "MiB that a step adds", "GFLOPs of matrix products per step"]
    assert [item.unit for item in found] == units * 2 and found[0].goal == 1 / 6.5
    assert 0 < found[0].relative_error < 1e-4  # two ways to the same gradients
    assert found[2].ratio > 1.2 * found[5].ratio and found[4].ratio < found[1].ratio < 1
