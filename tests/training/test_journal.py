import csv
import multiprocessing
import os
import re
import signal
import time

import pytest

from paper_repro.cells.tasks import StopRequestedError
from paper_repro.tests.support.reports import Recorder
from paper_repro.tests.training.doubles import assert_same_runs
from paper_repro.training.fit import Fit

KINDS = ["csv", "tensorboard"]
COUNTS = [1, 2]


class Ending(Recorder):
    """A report that ends its process, as a user or a lack of memory does, or fails, once so many steps are done."""

    def __init__(self, stop_at, killing):
        super().__init__(stop_at)
        self.killing = killing

    def progress(self, step, steps, loss):
        if step >= self.stop_at and self.killing:
            os.kill(os.getpid(), signal.SIGKILL)
        elif step >= self.stop_at:  # all that was told is on the disk, the checkpoint is older
            raise ConnectionError("torn")


@pytest.fixture(params=KINDS)
def kind(request):
    if request.param == "tensorboard":
        pytest.importorskip("tensorboard", reason="pip install 'paper-repro[tensorboard]'")
    return request.param


@pytest.fixture
def cells(cell):
    def make(kind, count=1, **changes):
        own = {"machine__logger": kind, "machine__log_every_steps": 1, "machine__checkpoint_every_steps": 5}
        own |= {"training__evaluate_every": 4, **changes}
        return [cell(seed=seed, **own) for seed in range(count)]

    return make


def points(folder, kind):
    """Every point of a cell as (step, name, value), in order; a point that is there twice is twice in the list."""
    folder = folder / "logs"
    if kind == "csv":
        with (folder / "metrics.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        return sorted(
            (int(row["step"]), name, float(text))
            for row in rows
            for name, text in row.items()
            if name != "step" and text
        )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return sorted((event.step, tag, event.value) for tag in found.Tags()["scalars"] for event in found.Scalars(tag))


def forked(function):
    """Call the function in a process of its own, which may die; return its exit code.

    A fork beside other threads may hang on a lock that one of them held: then it is killed, and called again.
    """
    for _ in range(3):
        process = multiprocessing.get_context("fork").Process(target=function)
        process.start()
        process.join(60)
        if process.exitcode is not None:
            return process.exitcode
        process.kill()
        process.join()
    raise AssertionError("three processes hung")


@pytest.mark.parametrize("count", COUNTS)
def test_points_are_the_losses_of_the_steps_and_what_was_evaluated_and_change_no_result(
    count, kind, cells, run, tmp_path
):
    batch = cells(kind, count)
    outcomes, without = run(batch, tmp_path / "a"), run(cells(None, count), tmp_path / "b")
    assert_same_runs(outcomes, without, batch, (tmp_path / "a", tmp_path / "b"))
    assert not list((tmp_path / "b").rglob("logs"))
    for one, outcome in zip(batch, outcomes, strict=True):
        expected = sorted((step, name, value) for name, curve in outcome.curves.items() for step, value in curve)
        found = points(tmp_path / "a" / one.id, kind)
        assert [point[:2] for point in found] == [point[:2] for point in expected]
        assert [point[2] for point in found] == pytest.approx([point[2] for point in expected], rel=1e-6)
    rarer = cells(kind, machine__log_every_steps=5, training__evaluate_every=None)
    run(rarer, tmp_path / "c")
    losses = [step for step, name, _ in points(tmp_path / "c" / rarer[0].id, kind) if name == "training_loss"]
    assert losses == [5, 10, 12]


@pytest.mark.parametrize("count", COUNTS)
def test_nothing_is_lost_or_there_twice_after_kills_stops_and_errors(count, kind, cells, run, tmp_path):
    batch = cells(kind, count)
    run(batch, tmp_path / "whole")
    folder = tmp_path / "cut"
    # Checkpoints lie after steps 5 and 10; that of the stop lies where it stopped.
    assert forked(lambda: Fit().run(batch, folder, Ending(8, killing=True))) == -signal.SIGKILL
    for one in batch if kind == "csv" else ():  # a kill may have cut off the last row
        with (folder / one.id / "logs" / "metrics.csv").open("a") as stream:
            stream.write("9,")
    for error, report in ((ConnectionError, Ending(9, killing=False)), (StopRequestedError, Recorder(12))):
        time.sleep(1.1 * (kind == "tensorboard"))  # event files are read in the order of the second in their names
        with pytest.raises(error):
            Fit().run(batch, folder, report)
    time.sleep(1.1 * (kind == "tensorboard"))
    run(batch, folder)
    for one in batch:
        assert points(folder / one.id, kind) == points(tmp_path / "whole" / one.id, kind)
        assert len(points(folder / one.id, kind)) == 12 + 2 * 3


@pytest.mark.parametrize("count", COUNTS)
def test_the_log_tells_steps_and_losses_without_any_logger(count, cells, run, tmp_path):
    batch = cells(None, count)
    outcomes = run(batch, tmp_path, stops=(7,))
    lines = (tmp_path / "log.txt").read_text().splitlines()
    ids = " ".join(one.id for one in batch)
    assert lines[0] == f"from the start, 12 steps: {ids}" and f"on from step 7, 12 steps: {ids}" in lines
    steps = [re.fullmatch(r"step (\d+) of 12, \d+\.\d s, training_loss (.+)", line) for line in lines]
    assert [int(found[1]) for found in steps if found] == list(range(1, 13))
    last = [f"{outcome.curves['training_loss'][-1][1]:.6g}" for outcome in outcomes]
    assert next(found[2] for found in reversed(steps) if found).split() == last
    assert sum("evaluation" in line for line in lines) == 3 * count


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_weights_and_biases_offline_has_a_run_for_each_cell(count, cells, run, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="pip install 'paper-repro[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    batch = cells("wandb", count)
    with pytest.raises(StopRequestedError):
        Fit().run(batch, tmp_path, Recorder(7))
    time.sleep(1.1)  # wandb names the folder of an offline run by the second; no process starts within one
    run(batch, tmp_path)
    for one in batch:
        logs = tmp_path / one.id / "logs"
        name = (logs / "wandb-run.txt").read_text()
        assert name.startswith(f"{one.id}-")
        files = sorted(logs.glob(f"wandb/offline-run-*-{name}/run-{name}.wandb"))
        assert len(files) == 2  # one of each call: wandb sync joins them by their id
        assert all(b"training_loss" in file.read_bytes() for file in files)
