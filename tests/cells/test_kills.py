"""Real SIGKILLs, to the runner and its workers at once, at random moments inside a small sweep."""

import random
import time
from pathlib import Path

import psutil
import pytest

from paper_repro.cells import records
from paper_repro.tests.support import sweeps

STEPS = 12
DELAY = 0.03


def _finished(runs: Path) -> dict[str, bytes]:
    """Every record below ``runs``; reading one that is not whole raises."""
    found = {}
    for path in runs.glob("cells/*/record.json"):
        records.read(path)
        found[path.parent.name] = path.read_bytes()
    return found


@pytest.mark.parametrize(
    "kills", [pytest.param(20, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.stress)]
)
def test_kills_of_a_sweep_lose_nothing_and_change_nothing(kills: int, tmp_path: Path) -> None:
    papers, log = tmp_path / "papers", tmp_path / "task.log"
    sweeps.write_artifact(papers, STEPS, DELAY)
    undisturbed = tmp_path / "undisturbed"
    assert sweeps.start(papers, undisturbed, tmp_path / "other.log").wait(120) == 0

    runs, dice = tmp_path / "runs", random.Random(kills)
    finished: dict[str, bytes] = {}
    landed = 0
    for _ in range(3 * kills):
        if landed == kills:
            break
        before = sweeps.steps_by_cell(log)
        process = sweeps.start(papers, runs, log)
        time.sleep(dice.uniform(0.05, 1.2))
        landed += process.poll() is None
        psutil.wait_procs(sweeps.kill(process), timeout=10)
        process.wait()
        after = sweeps.steps_by_cell(log)
        again = {cell for cell in finished if after.get(cell, 0) > before.get(cell, 0)}
        assert not again, f"finished cells were run again: {again}"
        now = _finished(runs)
        assert {cell: now[cell] for cell in finished} == finished, "a finished record changed"
        finished = now
        if len(finished) == 18:
            runs, finished = tmp_path / f"runs-{landed}", {}
            log = tmp_path / f"task-{landed}.log"
    assert landed == kills
    assert sweeps.start(papers, runs, log).wait(120) == 0
    for name in ("table.md", "table.csv", "table.tex", "table.json"):
        place = Path("test/sweep/smoke") / name
        assert (runs / place).read_bytes() == (undisturbed / place).read_bytes(), name
    assert not list(runs.rglob("lease")) and not list(runs.glob("stacks/*"))


TRAINING = """
title: A small training sweep
source: {paper: none, where: a test}
experiment: cem/gaussian_process
metrics: {test_rmse: {title: Test RMSE, unit: none, direction: lower, published: false}}
axes:
  steps:
    title: Steps
    values:
      t1: {label: T1, overrides: {model.block.num_steps: 1}}
      t2: {label: T2, overrides: {model.block.num_steps: 2}}
scales:
  smoke:
    comparable: false
    seeds: [0, 1, 2]
    about: "300 steps."
    overrides: {training.steps: 300, data.num_train: 600, data.num_test: 100, data.num_features: 64, machine.workers: 1,
                machine.checkpoint_every_steps: 25, machine.progress_every_seconds: 0.01}
"""


@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.stress)])
def test_a_training_that_was_killed_ends_in_the_same_table(kills: int, tmp_path: Path) -> None:
    papers = tmp_path / "papers"
    path = papers / "test" / "sweep.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(TRAINING)
    undisturbed, runs = tmp_path / "undisturbed", tmp_path / "runs"
    assert sweeps.start(papers, undisturbed, tmp_path / "log").wait(120) == 0
    for kill in range(kills):
        process = sweeps.start(papers, runs, tmp_path / "log")
        seen = _checkpoints(runs)
        sweeps.wait_for(lambda seen=seen: _checkpoints(runs) - seen, process)
        time.sleep(0.03 * kill)
        assert process.poll() is None
        psutil.wait_procs(sweeps.kill(process), timeout=10)
    assert sweeps.start(papers, runs, tmp_path / "log").wait(120) == 0
    for name in ("table.md", "table.json", "table.csv"):
        place = Path("test/sweep/smoke") / name
        assert (runs / place).read_bytes() == (undisturbed / place).read_bytes(), name


def _checkpoints(runs: Path) -> set[Path]:
    return {path for path in runs.glob("stacks/*/checkpoints/*") if path.suffix != ".part"}
