"""The process that imports once and forks a worker for each job, and the runner's side of it."""

import io
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from paper_repro.base.errors import INTERRUPTED, UsageError
from paper_repro.cells import fork_server, records, runner
from paper_repro.cells.estimates import Estimate
from paper_repro.cells.fork_server import ServerProcess, Servers
from paper_repro.cells.planned import PlannedCell, single
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import FAILED, FINISHED, Cost
from paper_repro.tests.support import sweeps
from paper_repro.tests.support.slow_task import LOG_VARIABLE

MIB = 2**20
TRAINED = (
    "training.steps=2",
    "data.num_train=60",
    "data.num_test=20",
    "data.batch_size=20",
    "data.num_features=16",
    "machine.stack=null",
    "machine.progress_every_seconds=0",
)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "task.log"
    monkeypatch.setenv(LOG_VARIABLE, str(path))
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerProcess]:
    """The fork servers that the test has started."""
    found: list[ServerProcess] = []

    def start(*given: Any) -> ServerProcess:
        found.append(ServerProcess(*given))
        return found[-1]

    monkeypatch.setattr(fork_server, "ServerProcess", start)
    return found


@pytest.fixture
def server(tmp_path: Path, log: Path) -> Iterator[ServerProcess]:
    with Servers(tmp_path / "runs") as servers:
        (tmp_path / "runs").mkdir()
        yield servers.of({})


def _job(server: ServerProcess, cell: PlannedCell) -> int:
    return server.fork(cells=[{"id": cell.id, "config": cell.config}], fill=False, cost=None)


def _wait(server: ServerProcess, *workers: int) -> list[dict[str, Any]]:
    """Wait until the workers have ended; return their events."""
    events: list[dict[str, Any]] = []
    while not {*workers} <= {event["worker"] for event in events if event["event"] == "ended"}:
        events += server.hear()
    return events


def _processor_seconds(pid: int) -> float:
    """Return what a process and its children that have ended took."""
    return sum(psutil.Process(pid).cpu_times()[:4])


@pytest.mark.slow
def test_three_hundred_workers_leave_nothing_in_the_process_that_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # where there is no git, two at a time take four seconds
    (cell,) = sweeps.cells(1)
    with Servers(tmp_path) as servers:
        server = servers.of(cell.config)
        forking, own = psutil.Process(server.process.pid), psutil.Process()
        seen = []
        for pair in range(150):
            workers = [server.fork(devices=cell.config, count=[cell.config], check=[]) for _ in range(2)]
            assert [event["code"] for event in _wait(server, *workers) if event["event"] == "ended"] == [0, 0]
            if pair in (10, 149):
                seen.append((forking.memory_info().rss, forking.num_fds(), own.num_fds()))
        (memory, *descriptors), (memory_then, *descriptors_then) = seen
        assert memory_then - memory < 2 * MIB and descriptors_then == descriptors
        assert forking.num_threads() == 1 and not forking.children()


def test_each_job_has_a_process_of_its_own_forked_from_one(
    tmp_path: Path, log: Path, started: list[ServerProcess]
) -> None:
    cells = sweeps.cells(5, workers=2, steps=2)
    assert runner.run(cells, tmp_path / "runs", io.StringIO()).exit_code == 0
    of_jobs = {line.split()[2] for line in log.read_text().splitlines()}
    assert len(started) == 1 and len(of_jobs) == 5 and str(started[0].process.pid) not in of_jobs


def test_cells_with_other_threads_have_another_server(tmp_path: Path, log: Path, started: list[ServerProcess]) -> None:
    cells = sweeps.cells(4, workers=2, steps=2)
    for cell, threads in zip(cells, (1, 2, 2, None), strict=True):
        cell.config["machine"]["threads"] = threads
    assert runner.run(cells, tmp_path / "runs", io.StringIO()).exit_code == 0
    assert [server.threads for server in started] == [1, 2, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mishap", "cause"),
    [("exit", "exit code 3"), ("die", "signal 9"), ("segfault", "signal 11"), ("abort", "signal 6")],
)
def test_a_crash_of_one_cell_touches_no_other(
    mishap: str, cause: str, tmp_path: Path, log: Path, started: list[ServerProcess]
) -> None:
    runs, cells = tmp_path / "runs", sweeps.cells(6, workers=2, steps=4, mishap=mishap, only_seed=2)
    assert runner.run(cells, runs, io.StringIO()).by_status == {FINISHED: 5, FAILED: 1}
    found = [records.read(record_path(runs, cell.id)) for cell in cells]
    assert [record.status for record in found] == [FINISHED] * 2 + [FAILED] + [FINISHED] * 3
    assert cause in found[2].note
    steps = sweeps.steps_by_cell(log)
    assert all(steps[cell.id] == 4 for cell in cells if cell is not cells[2])
    assert len(started) == 1


@pytest.mark.slow
def test_a_second_cell_of_a_kind_takes_less_than_a_second(server: ServerProcess, tmp_path: Path) -> None:
    taken = []
    for seed in (0, 1):
        before = _processor_seconds(server.process.pid)
        cell = single("cem/gaussian_process", TRAINED, seed)
        _wait(server, _job(server, cell))
        taken.append(_processor_seconds(server.process.pid) - before)
        assert records.read(record_path(tmp_path / "runs", cell.id)).status == FINISHED
    first, second = taken
    assert second < 1.0 < first, "the first one imports torch and Lightning"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_every_worker_may_use_the_gpu(server: ServerProcess, tmp_path: Path) -> None:
    cells = [single("cem/gaussian_process", ("machine=gpu", *TRAINED), seed) for seed in range(3)]
    _wait(server, *[_job(server, cell) for cell in cells])
    for cell in cells:
        found = records.read(record_path(tmp_path / "runs", cell.id))
        assert (found.status, found.provenance["device"]) == (FINISHED, torch.cuda.get_device_name())


@pytest.mark.slow
def test_the_runner_imports_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from paper_repro.cells import runner\n"
        "from paper_repro.cells.planned import single\n"
        f"cell = single('cem/gaussian_process', {TRAINED!r}, 0)\n"
        f"result = runner.run_cells([cell], Path({str(tmp_path)!r}), [])\n"
        "print(result.exit_code, cell.id, [name for name in ('torch', 'lightning') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, cell, imported = done.stdout.split(maxsplit=2)
    assert code == "0" and imported == "[]\n"
    assert (records.read(record_path(tmp_path, cell)).parameters or 0) > 0


def test_what_was_counted_before_a_sweep_stands_in_its_records(tmp_path: Path) -> None:
    cells = sweeps.cells(4, batch=2, steps=1)
    cost = Cost(parameters=7, multiply_adds=11, step_flops=0, steps=0, memory_bytes=0)
    runner.run(cells, tmp_path, io.StringIO(), estimates={cells[0].id: Estimate(cost, 1.0)})
    found = [records.read(record_path(tmp_path, cell.id)) for cell in cells]
    assert [(record.parameters, record.multiply_adds) for record in found] == [(7, 11)] * 2 + [(None, None)] * 2


@pytest.mark.slow
def test_costs_are_counted_in_another_process_and_errors_come_back(tmp_path: Path) -> None:
    good = single("cem/gaussian_process", TRAINED, 0).config
    wrong = {**good, "model": {**good["model"], "widht": 3}}
    broken = {**good, "task": {"_target_": sweeps.BROKEN}}
    with Servers(tmp_path) as servers:
        (cost,) = servers.count([good], [], good)
        assert cost is not None and cost.parameters > 0 and cost.steps == 2
        assert servers.count([{"task": {"_target_": sweeps.TARGET}}] * 2, [], good) == [None, None]
        for configs, others in (([wrong], []), ([good], [wrong])):
            with pytest.raises(UsageError, match=r"unknown key 'widht'"):
                servers.count(configs, others, good)
        with pytest.raises(RuntimeError, match=f"ZeroDivisionError: the count broke; see {tmp_path}"):
            servers.count([broken], [], good)
        with pytest.raises(RuntimeError, match="killed by signal 9"):
            servers.count([{**broken, "die": True}], [], good)
        assert servers.count([good], [], good) == [cost]


def _parent_of_the_first_step(log: Path, cells: int = 1) -> psutil.Process:
    while len({line.split()[1] for line in log.read_text().splitlines()} if log.is_file() else ()) < cells:
        time.sleep(0.01)
    return psutil.Process(int(log.read_text().split()[2])).parent()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_somebody_ends_is_replaced(number: signal.Signals, tmp_path: Path, log: Path) -> None:
    def end() -> None:
        _parent_of_the_first_step(log, cells=2).send_signal(number)

    threading.Thread(target=end, daemon=True).start()
    cells = sweeps.cells(4, workers=2, steps=20, delay=0.02)
    assert runner.run(cells, tmp_path / "runs", io.StringIO()).by_status == {FINISHED: 4}
    if number == signal.SIGTERM:
        assert set(sweeps.steps_by_cell(log).values()) == {20}, "a worker that is told to stop repeats no step"


def test_all_workers_end_with_their_server(server: ServerProcess, log: Path) -> None:
    for cell in sweeps.cells(3, steps=2000, delay=0.01):
        _job(server, cell)
    workers = _parent_of_the_first_step(log, cells=3).children()
    assert len(workers) == 3
    server.process.kill()
    assert not psutil.wait_procs(workers, timeout=10)[1]


def test_a_worker_that_measures_ends_when_it_is_told_to(server: ServerProcess, log: Path) -> None:
    """Its training is on the disk; it does not look at requests, and probes suppress errors."""
    (cell,) = sweeps.cells(1, steps=2, mishap="measure")
    worker = _job(server, cell)
    while "measure" not in (log.read_text() if log.is_file() else ""):
        time.sleep(0.01)
    began = time.monotonic()
    server.stop()
    events = _wait(server, worker)
    assert time.monotonic() - began < 30, "it would have measured for a minute"
    assert events[-1]["code"] == INTERRUPTED
    assert {event["event"] for event in events} <= {"progress", "ended"}, "it has neither recorded nor ended its job"
