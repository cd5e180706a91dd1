"""Workers and the fork server, which imports what they need."""

import io
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.cells import fork_server, records, runner
from paper_repro.cells.estimates import Estimate, count_here
from paper_repro.cells.fork_server import ForkServer
from paper_repro.cells.planned import PlannedCell, single
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import Cost
from paper_repro.tests.support import sweeps


def test_what_was_counted_before_a_sweep_stands_in_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = sweeps.cells(4, batch=2, steps=1)
    cost = Cost(parameters=7, multiply_adds=11, step_flops=0, steps=0, memory_bytes=0)
    monkeypatch.setattr(runner, "estimate", lambda *_: {cells[0].id: Estimate(cost, 1.0)})
    runner.run(cells, tmp_path, io.StringIO())
    found = [records.read(record_path(tmp_path, cell.id)) for cell in cells]
    assert [(record.parameters, record.multiply_adds) for record in found] == [(7, 11)] * 2 + [(None, None)] * 2


@pytest.mark.slow
def test_costs_are_counted_in_another_process_and_errors_come_back(tmp_path: Path) -> None:
    good = single("cem/gaussian_process", ["training.steps=2"], 0)
    wrong = replace(good, config={**good.config, "model": {**good.config["model"], "widht": 3}})
    broken = replace(good, config={**good.config, "task": {"_target_": sweeps.BROKEN}})
    with ForkServer(tmp_path, [good.config]) as server:

        def count(*cells: PlannedCell) -> Any:
            return server.call(count_here, cells, good.config)

        (cost,) = count(good)
        assert cost is not None and cost.parameters > 0 and cost.steps == 2
        assert count(*sweeps.cells(2)) == [None, None]
        with pytest.raises(UsageError, match=r"unknown key 'widht'"):
            count(good, wrong)
        with pytest.raises(RuntimeError, match=f"ZeroDivisionError: the count broke; see {tmp_path}"):
            count(broken)
        with pytest.raises(RuntimeError, match="killed by signal 9"):
            count(replace(broken, config={**broken.config, "die": True}))
        assert count(good) == [cost]


def test_a_worker_that_measures_ends_when_it_is_told_to(tmp_path: Path, log: Path) -> None:
    """Its training is on the disk; it does not look at requests, and probes suppress errors."""
    (cell,) = sweeps.cells(1, steps=2, mishap="measure")
    with ForkServer(tmp_path, [cell.config]) as server:
        server.prepare()
        worker = server.start(cells=[cell], fill=False, cost=None, cards=[])
        sweeps.wait_for(lambda: log.is_file() and "measure" in log.read_text())
        began, events, code = time.monotonic(), list[dict[str, Any]](), None
        worker.stop()
        while code is None:
            fork_server.wait(worker.waits)
            heard, code = worker.hear()
            events += heard
    assert time.monotonic() - began < 30, "it would have measured for a minute"
    assert code == -signal.SIGTERM
    assert {event["event"] for event in events} == {"progress"}, "it has neither recorded nor ended its job"
