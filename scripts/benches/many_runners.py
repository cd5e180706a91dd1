"""What many runners of one sweep ask of a file server, beside the same sweep with an older commit's code.

A simulation (``simulated``) plays a sweep of 10,000 cells that train nothing, on 256 runners as jobs of SLURM start
them.  Some cells raise, some kill their worker once, and some runners are killed with all that they have started, and
come again on another node.  It counts how often a path below the folder of runs is asked for, by whom and for what; the
records must come out equal byte for byte.  The other rows are processor time: of a runner's start and end over records
that are there, and of a cell that does nothing, with its real worker.
"""

import argparse
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from simulated import Actor, Process, Servers, Stage, prepare

from paper_repro.base import identity
from paper_repro.base.files import sha256_of_bytes
from paper_repro.base.identity import mix
from paper_repro.cells import pool, runner
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "5e96164383c64cd405c46559923a69ade721eaa1"
"""The commit with whose code the other side runs."""
CELLS, RUNNERS = 10_000, 256
ROUNDS = 3
REAL_CELLS = 100
SEEDS = 10
"""Cells of one setting."""
SECONDS = (30, 90)
"""A cell takes between these."""
STEPS = 4
RAISES, KILLS = 50, 100
"""One cell in so many raises; one in so many kills its worker the first time."""
KILLED_RUNNERS = 16
"""One runner in so many is killed once."""
REQUEUE_SECONDS = 45.0
START_SECONDS = 5.0
"""Runners begin within so many seconds of each other."""
PATIENCE = 120.0
PARTS = {
    "start": "start: what is done, what may be run, what it takes",
    "walk": "walk over the cells: which are open",
    "elsewhere": "looks at cells that others run",
    "end": "end: how many cells have which status",
    "worker": "workers: leases taken and given back, records written",
    "heartbeat": "heartbeats of leases",
}


@dataclass(frozen=True)
class Row:
    """One part of what a sweep costs, before and now."""

    kind: ClassVar[str] = "sweeps"
    case: str
    unit: str
    before: list[float]
    now: list[float]

    @property
    def ratio(self) -> float:
        """Before over now."""
        return statistics.median(self.before) / max(statistics.median(self.now), 1e-9)

    def line(self) -> str:
        """Write the row for the terminal."""
        return f"{self.case}: {_spread(self.before)} {self.unit} before, {_spread(self.now)} now, {self.ratio:.2f}x"

    def record(self) -> dict[str, Any]:
        """Return everything measured."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True)
class Outcomes:
    """What became of the simulated sweep, the same on both sides."""

    kind: ClassVar[str] = "outcomes"
    found: dict[str, Any]

    def line(self) -> str:
        """Write it for the terminal."""
        return ", ".join(f"{name} {value}" for name, value in self.found.items())

    def record(self) -> dict[str, Any]:
        """Return all of it."""
        return self.found


def about() -> dict[str, Any]:
    """Return what the file says beside its rows."""
    return {"before": BEFORE, "cells_of_the_sweep": CELLS, "runners_of_the_sweep": RUNNERS}


def compare(device: Any, cells: int = CELLS, runners: int = RUNNERS, rounds: int = ROUNDS) -> Iterator[Row | Outcomes]:
    """Play the sweep with the code of ``BEFORE`` and with today's, and measure processor time of both in turns.

    Raises:
        SystemExit: that commit is not here, or a side has lost a cell, a lease or a byte of a record.
    """
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        folder = Path(name)
        old = older_code(folder / "code")
        found = [_side(code, "sweep", folder / f"runs-{code is ROOT}", cells, runners) for code in (old, ROOT)]
        yield checked(*found)
        yield from _counted(*found)
        what = f"{cells:,} cells"
        for mode, runs, case in (
            ("start", folder / "none", f"start and end of a runner, {what}, no result there"),
            ("start", folder / "runs-True", f"start and end of a runner, {what}, all results there"),
            ("real", folder / "real", f"a cell that does nothing, with its worker ({REAL_CELLS} in a row)"),
        ):
            times: tuple[list[float], list[float]] = ([], [])
            for turn in range(rounds):
                for side, code in enumerate((old, ROOT)):
                    place = runs if runs.name != "real" else folder / f"real-{turn}-{side}"
                    seconds = _side(code, mode, place, cells, 1)["seconds"]
                    times[side].append(round(seconds * (1000 / REAL_CELLS if mode == "real" else 1), 3))
            yield Row(case, "processor ms" if mode == "real" else "processor s", *times)


def older_code(folder: Path, commit: str = BEFORE) -> Path:
    """Return a folder with a clone of this repository at a commit.

    Raises:
        SystemExit: this checkout does not have it.
    """
    commands = [["clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(folder)]]
    commands.append(["-C", str(folder), "checkout", "--quiet", "--detach", commit])
    for command in commands:
        if subprocess.run(["git", *command], capture_output=True, check=False).returncode:
            raise SystemExit(f"error: this checkout has no commit {commit}: git fetch --unshallow fetches all of them")
    return folder


def checked(before: dict[str, Any], now: dict[str, Any]) -> Outcomes:
    """Return what became of the sweep.

    Raises:
        SystemExit: a cell is without record, something is left beside records, or the sides have different records.
    """
    for side in (before, now):
        if sum(side["statuses"].values()) != side["cells"] or "absent" in side["statuses"] or side["left"]:
            raise SystemExit(f"error: the sweep has lost something: {side}")
    if before["digest"] != now["digest"]:
        raise SystemExit(f"error: the sides have different records: {before['digest']} and {now['digest']}")
    same = ("cells", "runners", "killed_runners", "statuses", "digest")
    differing = ("begun", "simulated_seconds", "most_of_a_runner")
    return Outcomes({**{name: now[name] for name in same}, **{name: [before[name], now[name]] for name in differing}})


def _counted(before: dict[str, Any], now: dict[str, Any]) -> Iterator[Row]:
    sides = [side["operations"] for side in (before, now)]
    for part, case in PARTS.items():
        yield Row(case, "file operations", *([float(sum(side.get(part, {}).values()))] for side in sides))
    totals = [[float(sum(sum(found.values()) for found in side.values()))] for side in sides]
    yield Row("all of it", "file operations", *totals)


def _side(code: Path, mode: str, runs: Path, cells: int, runners: int) -> dict[str, Any]:
    """Return what this file finds as a program with that code."""
    runs.mkdir(exist_ok=True)
    words = [mode, "--cells", str(cells), "--runners", str(runners), "--runs", str(runs)]
    found = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).resolve()), *words],
        env={**os.environ, "PYTHONPATH": f"{code}{os.pathsep}{Path(__file__).parent / 'shared'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise SystemExit(f"error: {mode} with the code of {code} failed: {found.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def _spread(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):,.4g}" if max(values) < 1000 else f"{statistics.median(values):,.0f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.4g} to {max(values):.4g})"


class SimulatedTask(Task):
    """Takes its time and trains nothing."""

    def __init__(self, stage: Stage, begun: Counter[str]) -> None:
        self._stage, self._begun = stage, begun

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        (cell,) = cells
        self._begun[cell.id] += 1
        seconds = SECONDS[0] + mix(cell.id, "seconds") % (SECONDS[1] - SECONDS[0])
        for step in range(STEPS):
            self._stage.sleep(self._stage.now + seconds / STEPS)
            report.check_lease()
            report.progress(step, STEPS, 0.5)
            if step == 2 and mix(cell.id, "raises") % RAISES == 0:
                raise RuntimeError("the task broke")
            if step == 1 and mix(cell.id, "kills") % KILLS == 0 and self._begun[cell.id] == 1:
                self._stage.actor.process.kill()
                self._stage.sleep(self._stage.now)
        curve = [(step, mix(cell.id, step) % 1000 / 1000) for step in range(60)]
        metrics = {"test_loss": mix(cell.id) % 1000 / 1000}
        return [Outcome(FINISHED, metrics=metrics, curves={"loss": curve}, seconds=float(seconds))]


def planned(count: int) -> list[PlannedCell]:
    """Return cells of which ``SEEDS`` share a setting."""
    result = []
    for number in range(count):
        place, seed = divmod(number, SEEDS)
        training = {f"key_{key}": mix(key, place) for key in range(12)}
        config = {"task": {"place": place}, "training": training, "seed": seed, "machine": {"workers": 1, "threads": 1}}
        own = identity.settings(config)
        result.append(PlannedCell((("place", str(place)),), seed, config, own, own))
    return result


def simulate(root: Path, count: int, runners: int) -> dict[str, Any]:
    """Run the sweep; returns what was counted and what became of it."""
    stage, begun = Stage(root), Counter[str]()
    cells = planned(count)
    results: list[runner.Result] = []
    killed = [number for number in range(runners) if number % KILLED_RUNNERS == KILLED_RUNNERS // 2]

    def run(number: int) -> None:
        share = runner.Share(number, runners, PATIENCE)
        results.append(runner.run_cells(cells, root, [root], share=share))

    def begin(number: int, life: int, at: float) -> Process:
        process = stage.process(f"node-{number}-{life}", number)
        Actor(stage, process, "start", lambda: run(number), at)
        return process

    prepare(stage, SimulatedTask(stage, begun))
    driver = stage.process("driver", -1)
    for number in range(runners):
        process = begin(number, 0, mix(number, "start") % 1000 / 1000 * START_SECONDS)
        if number in killed:
            span = int(count / runners * sum(SECONDS) / 2)

            def end(process: Process = process, number: int = number) -> None:
                process.kill()
                begin(number, 1, stage.now + REQUEUE_SECONDS)

            Actor(stage, driver, "driver", end, 20.0 + mix(number, "killed") % max(1, span - 40))
    started = time.process_time()
    stage.play()
    return {
        "cells": count,
        "runners": runners,
        "operations": {label: dict(sorted(found.items())) for label, found in sorted(stage.counts.items())},
        "most_of_a_runner": max(stage.by_runner.values()),
        "simulated_seconds": round(stage.now, 1),
        "killed_runners": len(killed),
        "begun": begun.total(),
        "processor_seconds": round(time.process_time() - started, 1),
        **_outcome(root, cells, results),
    }


def _outcome(root: Path, cells: Sequence[PlannedCell], results: Sequence[runner.Result]) -> dict[str, Any]:
    content, statuses = [], Counter[str]()
    for cell in sorted(cells, key=lambda one: one.id):
        path = root / "cells" / cell.id / "record.json"
        content.append(path.read_bytes() if path.is_file() else b"")
        statuses[json.loads(content[-1])["status"] if content[-1] else "absent"] += 1
    return {
        "statuses": dict(statuses),
        "left": sorted({path.name for path in root.glob("cells/*/*")} - {"record.json", "log.txt"}),
        "digest": sha256_of_bytes(b"".join(content)),
        "ended_runners": len(results),
    }


def started(root: Path, count: int) -> dict[str, Any]:
    """Return the processor seconds of a runner that finds what is in the folder, and gives out nothing."""
    cells = planned(count)
    vars(runner)["Servers"] = _NoServers
    pool.Pool.drain = lambda self: (False, "")  # type: ignore[method-assign]
    begun = time.process_time()
    runner.run_cells(cells, root, [root])
    return {"seconds": time.process_time() - begun}


class _NoServers(Servers):
    def __init__(self, runs: Path) -> None:
        pass


def real(root: Path) -> dict[str, Any]:
    """Return the processor seconds of cells that do nothing, of this process and all that it starts."""
    result = []
    for seed in range(REAL_CELLS):
        task = {"_target_": "paper_repro.tests.support.slow_task.SlowTask", "steps": 1, "delay": 0.0}
        config = {"task": task, "seed": seed, "machine": {"workers": 1, "threads": 1}}
        result.append(PlannedCell((("seed", str(seed)),), seed, config, *[identity.settings(config)] * 2))
    before = _spent()
    if runner.run(result, root, io.StringIO()).exit_code:
        raise SystemExit("error: a cell that does nothing has failed")
    return {"seconds": _spent() - before}


def _spent() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("sweep", "start", "real"))
    parser.add_argument("--cells", type=int, required=True)
    parser.add_argument("--runners", type=int, required=True)
    parser.add_argument("--runs", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    threading.stack_size(2**20)
    runs = options.runs.resolve()
    modes: dict[str, Callable[[], dict[str, Any]]] = {
        "sweep": lambda: simulate(runs, options.cells, options.runners),
        "start": lambda: started(runs, options.cells),
        "real": lambda: real(runs),
    }
    print(json.dumps(modes[options.mode]()), flush=True)
    sys.stderr.flush()
    os._exit(0)  # threads of killed processes never end


if __name__ == "__main__":
    sys.exit(main())
