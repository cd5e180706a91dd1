"""Small sweeps of SlowTask: as planned cells, and as an artifact for the command line."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil

from paper_repro.base import identity
from paper_repro.base.errors import ROOT
from paper_repro.cells.planned import PlannedCell
from paper_repro.tests.support.slow_task import LOG_VARIABLE

T = TypeVar("T")
PYTHON = ("/usr/bin/env", "--default-signal", sys.executable)
"""A shell starts what runs in its background with SIGINT ignored, nohup with SIGHUP; children inherit that."""
TARGET = "paper_repro.tests.support.slow_task.SlowTask"
HANGING = "paper_repro.tests.support.slow_task.Hanging"
ON_CARDS = "paper_repro.tests.support.slow_task.OnCards"
BROKEN = "paper_repro.tests.support.slow_task.BrokenCount"

ARTIFACT = """
title: A small sweep
source: {{paper: none, where: a test}}
experiment: ebt/training_cost
metrics: {{total: {{title: Total, unit: none, direction: lower, published: false}}}}
axes:
  size:
    title: Size
    values:
      small: {{label: Small, overrides: {{trunk.layers: 1}}}}
      middle: {{label: Middle, overrides: {{trunk.layers: 2}}}}
      large: {{label: Large, overrides: {{trunk.layers: 3}}}}
scales:
  smoke:
    comparable: false
    seeds: [0, 1, 2, 3, 4, 5]
    about: "{steps} slow steps."
    overrides: {{task._target_: {target}, +task.steps: {steps}, +task.delay: {delay}, machine.workers: 2}}
"""


def cells(
    count: int, batch: int = 1, workers: int | str = 2, on: Mapping[str, Any] | None = None, **task: Any
) -> list[PlannedCell]:
    """``count`` cells that differ in their seed, ``batch`` of them run together; ``on`` is more of their machine."""
    result = []
    for seed in range(count):
        machine: dict[str, Any] = {"workers": workers, "threads": 1, "stack": {"over": ["seed"], "most": batch}}
        machine |= on or {}
        config = {"task": {"_target_": TARGET, **task}, "seed": seed, "machine": machine}
        own = identity.settings(config)
        result.append(PlannedCell(own, config, (("seed", str(seed)),), seed, own))
    return result


def write_artifact(folder: Path, steps: int, delay: float, target: str = TARGET) -> None:
    """The artifact ``test/sweep``: 18 cells in 6 batches of 3."""
    path = folder / "test" / "sweep.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ARTIFACT.format(target=target, steps=steps, delay=delay))


def start(papers: Path, runs: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start ``reproduce.py test/sweep`` in a session of its own."""
    environment = {**os.environ, "PAPER_REPRO_PAPERS": str(papers), LOG_VARIABLE: str(log)}
    command = [*PYTHON, str(ROOT / "scripts" / "reproduce.py"), "test/sweep", "scale=smoke", f"runs={runs}"]
    with (runs.parent / f"{runs.name}.out").open("ab") as stream:
        return subprocess.Popen(command, env=environment, stdout=stream, stderr=stream, start_new_session=True)


def kill(process: "subprocess.Popen[Any]", number: signal.Signals = signal.SIGKILL) -> list[psutil.Process]:
    """Send a signal to a process and to all that it has started; return them."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(number)
    return family


def wait_for(there: Callable[[], T], process: "subprocess.Popen[Any] | None" = None, seconds: float = 200.0) -> T:
    """Return what ``there`` returns once that is true; fail if ``process`` ends before, or after ``seconds``."""
    until = time.monotonic() + seconds
    while not (found := there()):
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.005)
    return found


def steps_by_cell(log: Path) -> dict[str, int]:
    """How many steps each cell has taken, from the task's log."""
    counts: dict[str, int] = {}
    for line in log.read_text().splitlines() if log.is_file() else ():
        what, cell, _ = line.split()
        if what == "step":
            counts[cell] = counts.get(cell, 0) + 1
    return counts
