"""The bench of many runners: nothing is lost, what is counted, and what a runner asks for does not grow with cells."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import ROOT
from paper_repro.cells import records


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches" / "shared"))
    return import_module("many_runners")


def played(bench: Any, folder: Path, cells: int, runners: int) -> dict[str, Any]:
    found: dict[str, Any] = bench._side(ROOT, "sweep", folder, cells, runners)
    return found


def test_killed_runners_and_workers_lose_nothing_and_what_each_asks_for_does_not_grow_with_cells(
    bench: Any, tmp_path: Path
) -> None:
    small, large = played(bench, tmp_path / "small", 90, 18), played(bench, tmp_path / "large", 300, 18)
    for found in (small, large):
        assert found["killed_runners"] == 1 and found["ended_runners"] == 18
        assert found["begun"] > found["cells"] == sum(found["statuses"].values()) and found["left"] == []
        assert found["statuses"].keys() == {"finished", "failed"}
    asked = [{part: sum(counts.values()) for part, counts in found["operations"].items()} for found in (small, large)]
    # 18 runners that looked at each cell would ask 18 times as often for each cell more.
    more = {part: asked[1][part] - asked[0][part] for part in ("start", "walk", "end")}
    assert abs(more["end"] - 2 * 210) <= 18, "each cell is counted by one runner: its status and its content"
    assert more["start"] < 18 * 210 / 4
    assert more["walk"] < 18 * 210
    with pytest.raises(SystemExit, match="different records"):
        bench.checked(small, {**small, "digest": "0"})
    for lost in ({"left": ["lease"]}, {"statuses": {"finished": 89}}, {"statuses": {"finished": 89, "absent": 1}}):
        with pytest.raises(SystemExit, match="lost something"):
            bench.checked(small, {**small, **lost})


def test_the_same_sweep_goes_the_same_way(bench: Any, tmp_path: Path) -> None:
    first, second = (played(bench, tmp_path / str(turn), 60, 9) for turn in range(2))
    del first["processor_seconds"], second["processor_seconds"]
    assert first == second
    rows = list(bench._counted(first, second))
    assert [row.case for row in rows] == [*bench.PARTS.values(), "all of it"] and all(row.ratio == 1 for row in rows)
    assert rows[-1].before == [sum(sum(row.before) for row in rows[:-1])]
    assert bench.checked(first, second).record()["digest"] == first["digest"]


def test_a_commit_that_is_not_here_is_named(bench: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no commit 0123456789abcdef: git fetch --unshallow"):
        bench.older_code(tmp_path / "code", "0123456789abcdef")


def test_rows_and_outcome_stand_in_the_index(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    index = import_module("results_index")
    row = bench.Row("a part", "file operations", [30000.0], [1500.0])
    assert row.line() == "a part: 30,000 file operations before, 1,500 now, 20.00x"
    line = index._sweep(json.loads(json.dumps(row.record())), "here", "commit")
    assert line == ["a part", "30,000 file operations", "1,500 file operations", "20.00x", "here", "commit"]
    assert len(line) == len(index.SWEEP_HEADERS)
    timed = bench.Row("a cell", "processor ms", [2.0, 4.0, 3.0], [1.0, 1.5, 2.0])
    assert timed.line() == "a cell: 3 (2 to 4) processor ms before, 1.5 (1 to 2) now, 2.00x"


def test_what_is_played_writes_whole_records(bench: Any, tmp_path: Path) -> None:
    found = played(bench, tmp_path, 20, 1)
    assert found["statuses"].get("finished", 0) >= 18
    for cell in bench.planned(20):
        record = records.find(tmp_path, cell.id)
        assert record is not None and record.config["training"] == cell.config["training"]
