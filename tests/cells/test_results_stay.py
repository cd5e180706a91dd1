"""What a cell came to stays, whoever measures it again, dies beside it or stops."""

import io
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.files import read_code_state
from paper_repro.cells import leases, records, runner
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import record_path
from paper_repro.cells.runner import Dispatcher
from paper_repro.cells.tasks import FAILED, FINISHED, Outcome
from paper_repro.cells.worker import Channel, Worker
from paper_repro.tests.support import sweeps, synthetic
from paper_repro.tests.support.slow_task import SlowTask


def work(runs: Path, cells: list[PlannedCell], fill: bool = False) -> list[dict[str, Any]]:
    """Run a job of ``cells`` in this process; returns what it told of their ends."""
    told: list[dict[str, Any]] = []
    Worker(runs, Channel(told.append), read_code_state()).run({"cells": cells, "fill": fill, "cost": None})
    return [event for event in told if event["event"] == "done"]


def test_a_result_that_is_filled_stays_where_the_new_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = sweeps.cells(1, steps=2, needs=str(tmp_path / "file"))
    work(tmp_path, [cell])
    before = record_path(tmp_path, cell.id).read_bytes()

    def broken(*_: Any) -> None:
        assert record_path(tmp_path, cell.id).read_bytes() == before, "it is there all the time"
        raise RuntimeError("no luck")

    with monkeypatch.context() as patched:
        patched.setattr(SlowTask, "run", broken)
        (told,) = work(tmp_path, [cell], fill=True)
    assert told["status"] == FAILED and "no luck" in told["note"]
    assert record_path(tmp_path, cell.id).read_bytes() == before
    (tmp_path / "file").touch()
    work(tmp_path, [cell], fill=True)
    assert not records.read(record_path(tmp_path, cell.id)).unavailable


@pytest.mark.parametrize("held", [False, True])
def test_a_death_is_not_recorded_over_what_another_runner_has(tmp_path: Path, held: bool) -> None:
    (cell,) = sweeps.cells(1)
    pool, origin = Dispatcher.__new__(Dispatcher), synthetic.PROVENANCE
    pool._runs = tmp_path
    if held:
        with leases.hold(tmp_path, [cell.id]):
            assert not pool._record_death(cell, "it died", origin)
            assert not record_path(tmp_path, cell.id).exists()
    else:
        synthetic.write_record(tmp_path, cell, Outcome(FINISHED, {"total": 1.0}))
        before = record_path(tmp_path, cell.id).read_bytes()
        assert not pool._record_death(cell, "it died", origin)
        assert record_path(tmp_path, cell.id).read_bytes() == before
    assert not leases.lease_path(tmp_path, cell.id).exists()
    (alone,) = sweeps.cells(1, steps=7)
    assert pool._record_death(alone, "it died", origin)
    assert records.read(record_path(tmp_path, alone.id)).note == "it died"


def test_a_cell_that_failed_since_the_order_was_given_is_not_run_by_a_later_job(tmp_path: Path, log: Path) -> None:
    cells = sweeps.cells(2, steps=2, mishap="raise", at=1)
    (tmp_path / "runs").mkdir()
    given = (tmp_path / "runs").stat().st_mtime_ns
    for _ in range(2):
        assert runner.run(cells, tmp_path / "runs", io.StringIO(), patience=1.0, since=given).exit_code == 1
        assert log.read_text().count("begin") == 2
    later = max(record_path(tmp_path / "runs", cell.id).stat().st_mtime_ns for cell in cells) + 1
    runner.run(cells, tmp_path / "runs", io.StringIO(), patience=1.0, since=later)
    assert log.read_text().count("begin") == 4, "the next order tries again"
