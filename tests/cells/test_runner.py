import errno
import io
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from paper_repro.base import identity
from paper_repro.cells import leases, records, runner
from paper_repro.cells.planned import jobs
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import DIVERGED, FAILED, FINISHED, OUT_OF_MEMORY
from paper_repro.tests.support import sweeps


def _record(runs: Path, cell: str) -> records.Record:
    return records.read(record_path(runs, cell))


def test_cells_run_once_and_are_skipped_afterwards(tmp_path: Path, log: Path) -> None:
    runs = tmp_path / "runs"
    cells = sweeps.cells(5, steps=3)
    first = runner.run(cells, runs, io.StringIO())
    assert first.exit_code == 0 and first.by_status == {FINISHED: 5}
    contents = {cell.id: record_path(runs, cell.id).read_bytes() for cell in cells}
    second = runner.run(cells, runs, io.StringIO())
    assert second.by_status == {FINISHED: 5}
    assert sweeps.steps_by_cell(log) == {cell.id: 3 for cell in cells}
    assert contents == {cell.id: record_path(runs, cell.id).read_bytes() for cell in cells}
    assert not list(runs.rglob("lease")) and not list(runs.rglob("*.part"))


def test_batches_are_even_ordered_and_leave_one_record_a_cell(tmp_path: Path, log: Path) -> None:
    cells = sweeps.cells(7, batch=3, steps=2)
    groups = jobs(cells)
    assert [len(group.cells) for group in groups] == [3, 3, 1]
    assert [cell.seed for group in groups for cell in group.cells] == list(range(7))
    runs = tmp_path / "runs"
    assert runner.run(cells, runs, io.StringIO()).exit_code == 0
    assert all(_record(runs, cell.id).status == FINISHED for cell in cells)
    assert not list((runs / "stacks").iterdir())


def test_what_measures_time_runs_alone_after_all_others(tmp_path, log, monkeypatch):
    cells = sweeps.cells(6, steps=3)
    monkeypatch.setattr(identity, "is_timed", lambda config: config["seed"] in (0, 3))
    assert runner.run(cells, tmp_path / "runs", io.StringIO()).exit_code == 0
    timed = [cells[0].id, cells[3].id]
    steps = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("step")]
    last = steps[-6:]
    assert not set(steps[:-6]) & set(timed)
    assert last in ([cell for cell in order for _ in range(3)] for order in (timed, timed[::-1]))


def test_a_task_without_probes_is_filled_by_computing_it_again(tmp_path: Path, log: Path) -> None:
    runs, file = tmp_path / "runs", tmp_path / "file"
    (cell,) = sweeps.cells(1, steps=2, needs=str(file))
    for fill, begun in ((False, 1), (True, 2), (False, 2)):
        assert runner.run([cell], runs, io.StringIO(), fill=fill).exit_code == 0
        assert log.read_text().count("begin") == begun and "score" in _record(runs, cell.id).unavailable
    file.touch()
    for _ in range(2):
        assert runner.run([cell], runs, io.StringIO(), fill=True).exit_code == 0
        assert log.read_text().count("begin") == 3 and not _record(runs, cell.id).unavailable


@pytest.mark.slow
def test_mishaps_leave_the_other_cells_alone_and_say_what_happened(tmp_path: Path, log: Path) -> None:
    cases = {"raise": FAILED, "memory": OUT_OF_MEMORY, "diverge": DIVERGED, "die": FAILED}
    for mishap, status in cases.items():
        runs = tmp_path / mishap
        cells = sweeps.cells(3, steps=4, mishap=mishap, only_seed=1)
        stream = io.StringIO()
        result = runner.run(cells, runs, stream)
        assert result.exit_code == 1, mishap
        assert [_record(runs, cell.id).status for cell in cells] == [FINISHED, status, FINISHED], mishap
        note = _record(runs, cells[1].id).note
        expected = {"raise": "the task broke", "memory": "machine.stack.most", "diverge": "step 3", "die": "signal 9"}
        assert expected[mishap] in note and expected[mishap] in stream.getvalue()


def test_a_diverged_cell_is_a_result_and_a_failed_one_is_tried_again(tmp_path: Path, log: Path) -> None:
    for mishap, again in (("diverge", False), ("raise", True)):
        runs = tmp_path / mishap
        cells = sweeps.cells(1, steps=3, mishap=mishap)
        runner.run(cells, runs, io.StringIO())
        before = log.read_text().count("begin")
        runner.run(cells, runs, io.StringIO())
        assert (log.read_text().count("begin") > before) is again


def test_a_worker_killed_once_goes_on_from_its_checkpoint(tmp_path: Path, log: Path) -> None:
    runs = tmp_path / "runs"
    (cell,) = sweeps.cells(1, steps=6, at=4, mishap="die once")
    assert runner.run([cell], runs, io.StringIO()).exit_code == 0
    # Steps 1 to 3 were saved; step 4 was taken twice.
    assert sweeps.steps_by_cell(log) == {cell.id: 7}


def test_workers_outlive_their_fork_server_and_another_starts_the_next(tmp_path: Path, log: Path) -> None:
    def kill() -> None:
        sweeps.wait_for(lambda: log.is_file() and log.read_text().count("step") >= 3)
        psutil.Process(int(log.read_text().split()[2])).parent().kill()

    threading.Thread(target=kill, daemon=True).start()
    cells = sweeps.cells(3, workers=1, steps=20, delay=0.05)
    assert runner.run(cells, tmp_path / "runs", io.StringIO()).by_status == {FINISHED: 3}
    assert set(sweeps.steps_by_cell(log).values()) == {20}


def test_a_full_disk_stops_the_sweep_and_loses_nothing_finished(tmp_path: Path, log: Path) -> None:
    runs = tmp_path / "runs"
    cells = sweeps.cells(4, workers=1, steps=2, at=1, mishap="disk", only_seed=2)
    result = runner.run(cells, runs, io.StringIO())
    assert result.exit_code == 1 and "no space left" in result.fatal and "runs=DIR" in result.fatal
    kept = {cell.seed for cell in cells if record_path(runs, cell.id).is_file()}
    assert kept == {0, 1}
    assert all(_record(runs, cell.id).status == FINISHED for cell in cells if cell.seed in kept)


def test_damaged_records_and_checkpoints_are_run_again(tmp_path: Path, log: Path) -> None:
    runs = tmp_path / "runs"
    cells = sweeps.cells(3, steps=2)
    runner.run(cells, runs, io.StringIO())
    good = {cell.id: record_path(runs, cell.id).read_bytes() for cell in cells}
    damaged = [record_path(runs, cell.id) for cell in cells[:2]]
    damaged[0].write_bytes(good[cells[0].id][:-40])
    damaged[1].write_bytes(good[cells[1].id].replace(b'"total":', b'"totaI":'))
    for path in damaged:
        (path.parent / "state.json").unlink()
    assert runner.run(cells, runs, io.StringIO()).exit_code == 0
    assert sweeps.steps_by_cell(log) == {cells[0].id: 4, cells[1].id: 4, cells[2].id: 2}
    for cell in cells:
        assert _record(runs, cell.id).metrics == json.loads(good[cell.id])["metrics"]


@pytest.mark.slow
def test_two_runners_on_one_folder_run_each_cell_once(tmp_path: Path) -> None:
    papers, runs, log = tmp_path / "papers", tmp_path / "runs", tmp_path / "task.log"
    sweeps.write_artifact(papers, steps=4, delay=0.02)
    started = [sweeps.start(papers, runs, log) for _ in range(2)]
    assert [process.wait(120) for process in started] == [0, 0]
    assert len(sweeps.steps_by_cell(log)) == 18 and set(sweeps.steps_by_cell(log).values()) == {4}


def test_workers_stop_when_their_runner_is_killed(tmp_path: Path) -> None:
    papers, runs, log = tmp_path / "papers", tmp_path / "runs", tmp_path / "task.log"
    sweeps.write_artifact(papers, steps=500, delay=0.02)
    process = sweeps.start(papers, runs, log)
    sweeps.wait_for(
        lambda: len({line.split()[2] for line in log.read_text().splitlines()} if log.exists() else ()) == 2
    )
    pids = {int(line.split()[2]) for line in log.read_text().splitlines()}
    process.kill()
    process.wait()
    sweeps.wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert not list(runs.rglob("lease"))


def test_what_a_finished_batch_left_behind_is_cleared(tmp_path: Path) -> None:
    runs, cells = tmp_path / "runs", sweeps.cells(2, batch=2, steps=1)
    runner.run(cells, runs, io.StringIO())
    left = records.work_folder(runs, [cell.id for cell in cells])
    left.mkdir(parents=True)
    runner.run(cells, runs, io.StringIO())
    assert not left.exists()


def test_a_runner_without_patience_leaves_what_others_run(tmp_path: Path, log: Path) -> None:
    (cell,) = sweeps.cells(1, steps=2)
    with leases.hold(tmp_path, [cell.id]):
        began = time.monotonic()
        result = runner.run([cell], tmp_path, io.StringIO(), patience=1.0)
        assert result.by_status == {"not run": 1} and time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("devices", "workers", "expected"),
    [
        (1, "auto", [[card] for card in "abcdefgh"]),
        (2, 4, [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]),
        ([1, 3], 1, [[*"abcdefgh"]]),  # the user chooses
    ],
)
def test_each_worker_of_a_gpu_sees_cards_of_its_own(devices, workers, expected, tmp_path, log, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join("abcdefgh"))
    gpus = {"accelerator": "gpu", "devices": devices}
    cells = sweeps.cells(len(expected), workers=workers, on=gpus, _target_=sweeps.ON_CARDS, steps=40, delay=0.1)
    assert runner.run(cells, tmp_path / "runs", io.StringIO()).exit_code == 0
    told = [line.split()[0].split(",") for line in log.read_text().splitlines()]
    assert sorted(one for one in told if one[0] in "abcdefgh") == expected


def test_a_disk_that_the_runner_itself_cannot_write_to_stops_the_run(tmp_path, monkeypatch):
    def full(_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runner.Dispatcher, "_look_elsewhere", full)
    result = runner.run(sweeps.cells(2, steps=2), tmp_path, io.StringIO())
    assert "no space left" in result.fatal and result.exit_code == 1
