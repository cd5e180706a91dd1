"""The bench of whole commands: what is called, what is counted, and that a wrong exit code is no measurement."""

from importlib import import_module
from typing import Any

import pytest

from paper_repro.base.errors import ROOT


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches"))
    return import_module("commands")


@pytest.mark.slow
def test_commands_are_called_as_processes_and_held_against_their_goals(bench: Any) -> None:
    rows = {row.case: row for row in bench.compare(None, rounds=1, artifacts=["cem/table2", "cem/table3"])}
    assert {"--list", "--plan for the first time", "--plan once more"} < rows.keys()
    assert {"cem/table2 at scale exact", "cem/table3 at scale smoke", "cem/table3 rendered"} < rows.keys()
    assert all(0.02 < row.processor[0] < 300 and len(row.processor) == len(row.wall) == 1 for row in rows.values())
    smoke = rows["cem/table3 at scale smoke"]
    assert smoke.command == "scripts/reproduce.py cem/table3 scale=smoke machine.workers=1"
    assert smoke.record()["met"] == (smoke.processor[0] < smoke.goal == bench.SMOKE)
    late = bench.Row("late", "x", [1.0, 3.0, 2.5], [1.0, 1.0, 1.0], 2.0)
    assert not late.is_met and late.line().endswith("2.50 s of a processor, 1.00 s, goal 2 s: MISSED")


def test_a_command_that_ends_otherwise_is_no_measurement(bench: Any) -> None:
    with pytest.raises(SystemExit, match=r"ended with exit code 2: .*did you mean"):
        bench._call(["reproduce.py", "cem/tabel3"], 0)


@pytest.mark.slow
def test_an_artifact_without_its_data_is_not_left_out(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("PAPER_REPRO_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"error: ebt/fig4 at scale smoke lacks its data: .*prepare_data"):
        next(bench.compare(None, rounds=1, artifacts=["cem/table2", "ebt/fig4"]))
