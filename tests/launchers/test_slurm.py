"""Sweeps on a real SLURM, which the tests start themselves, or skip where it is missing; and what is refused."""

import io
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT, UsageError
from paper_repro.cells import runner
from paper_repro.cells.planned import PlannedCell
from paper_repro.launchers import slurm, start
from paper_repro.launchers.drain import Order
from paper_repro.tests.support import slurm_cluster, sweeps
from paper_repro.tests.support.slow_task import LOG_VARIABLE
from paper_repro.tests.support.sweeps import wait_for

TABLES = ("table.md", "table.csv", "table.tex", "table.json")
SEEDS = ",".join(map(str, range(40)))
"""By three sizes: 120 cells."""


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install submitit")
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


class Command:
    """``reproduce.py test/sweep`` over all cells, as a login node runs it."""

    def __init__(self, folder: Path, environment: dict[str, str], delay: float = 0.03) -> None:
        self.folder, self.runs, self.log = folder, folder / "runs", folder / "task.log"
        sweeps.write_artifact(folder / "papers", 12, delay)
        own = {"PAPER_REPRO_PAPERS": str(folder / "papers"), LOG_VARIABLE: str(self.log), "PYTHONPATH": str(ROOT)}
        self.environment = {**environment, **own}

    def start(self, *words: str, runs: Path | None = None) -> subprocess.Popen[str]:
        own = ["test/sweep", "scale=smoke", f"seeds={SEEDS}", f"runs={runs or self.runs}", "machine.stack=null"]
        return subprocess.Popen(
            [*sweeps.PYTHON, str(ROOT / "scripts" / "reproduce.py"), *own, *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, runs: Path | None = None) -> tuple[int, str]:
        process = self.start(*words, runs=runs)
        said, _ = process.communicate(timeout=500)
        return process.returncode, said

    def slurm(self, *command: str) -> str:
        found = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        return found.stdout + found.stderr

    def done(self) -> int:
        return len(list(self.runs.glob("cells/*/record.json")))

    def running(self) -> list[str]:
        """The tasks that run now, as ``number_index``."""
        rows = self.slurm("squeue", "--noheader", "--array", "--format=%i %T").splitlines()
        return [row.split()[0] for row in rows if row.endswith("RUNNING")]


@pytest.mark.slow
def test_a_sweep_whose_jobs_are_killed_and_requeued_gives_the_local_table(cluster, tmp_path):
    command = Command(tmp_path, cluster, delay=0.07)  # longer than it takes until the watch speaks again
    local = tmp_path / "local"
    code, said = command.run(runs=local)
    assert code == 0, said
    command.log.unlink()
    process = command.start("launcher=slurm", "launcher.partition=all", "launcher.jobs=3", "launcher.cpus=1")
    killed: list[str] = []
    for number in range(6):
        wait_for(lambda least=8 * (number + 1): command.done() >= least, process)
        running = wait_for(command.running, process)
        task = running[number % len(running)]
        if number % 2 == 0:  # an odd one is preempted: the requeue sends SIGTERM
            command.slurm("scancel", "--signal=KILL", task)
            wait_for(lambda task=task: task not in command.running(), process)
        wait_for(lambda task=task: command.slurm("scontrol", "requeue", task) == "", process, 60)
        killed.append(task)
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    restarts = re.findall(r"Restarts=([1-9]\d*)", command.slurm("scontrol", "show", "job"))
    assert sum(map(int, restarts)) == len(killed) == 6
    assert re.search(r"\d+/120 cells done, \d+ running.*; jobs: .*\d running", said) and "120/120 cells done" in said
    for name in TABLES:
        place = Path("test/sweep/smoke") / name
        own, other = (next(folder.rglob(f"{place.parent}*/**/{name}")) for folder in (command.runs, local))
        assert own.read_bytes() == other.read_bytes(), name
    steps = sweeps.steps_by_cell(command.log)
    assert len(steps) == 120 and min(steps.values()) >= 12
    # A worker that is killed repeats the step it was in; three jobs run one each at a time.
    assert sum(steps.values()) <= 120 * 12 + 2 * 6
    assert not list(command.runs.rglob("lease"))


@pytest.mark.slow
def test_jobs_go_on_without_the_command_that_another_one_watches(cluster: dict[str, str], tmp_path: Path) -> None:
    command = Command(tmp_path, cluster, delay=0.5)
    words = ("launcher=slurm", "launcher.jobs=2", "launcher.cpus=1")
    process = command.start(*words)
    wait_for(lambda: len(command.running()) == 2 and command.done(), process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "goes on; the same command watches it again" in said
    before = command.running()
    assert len(before) == 2
    again = command.start(*words)
    time.sleep(5)
    assert command.running() == before, "a second array was submitted"
    command.slurm("scancel", before[0].partition("_")[0])
    said, _ = again.communicate(timeout=60)
    assert again.returncode == 1 and "is there already and is watched" in said and "no result" in said
    assert not command.running()
    assert not list(command.runs.rglob("lease")), "the jobs had no time to save"


@pytest.mark.slow
def test_a_job_at_its_time_limit_saves_and_goes_on(cluster: dict[str, str], tmp_path: Path) -> None:
    """SLURM's shortest limit is a minute; the signal that says that it comes is sent after 25 s."""
    command = Command(tmp_path, cluster, delay=0.08)
    process = command.start("launcher=slurm", "launcher.minutes=1", "launcher.grace=35", "launcher.cpus=1")
    wait_for(lambda: "Restarts=1" in command.slurm("scontrol", "show", "job"), process, 300)
    done = command.done()
    wait_for(lambda: command.done() > done, process)
    command.slurm("scancel", command.running()[0].partition("_")[0])
    process.communicate(timeout=100)
    logs = "".join(path.read_text() for path in command.runs.glob("slurm/*/*_log.*"))
    assert "stopping: saving what is running" in logs and "Caught signal SIGUSR2" in logs
    steps = sweeps.steps_by_cell(command.log)
    finished = {path.parent.name for path in command.runs.glob("cells/*/record.json")}
    assert all(steps[cell] == 12 for cell in finished), "a step was taken twice"


@pytest.mark.slow
def test_what_slurm_cannot_do_is_said_before_anything_is_submitted(cluster: dict[str, str], tmp_path: Path) -> None:
    command = Command(tmp_path, cluster)
    code, said = command.run("launcher=slurm", "launcher.partition=gpu")
    assert code == 2 and "SLURM refuses the jobs" in said and "invalid partition" in said
    code, said = command.run("launcher=slurm", "launcher.cpus=1000")
    assert code == 2 and "SLURM refuses the jobs" in said
    assert not command.running() and "JobId" not in command.slurm("scontrol", "show", "job")


@pytest.mark.slow
def test_a_node_that_does_not_see_the_folder_is_named(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install submitit")
    hidden = tmp_path / "hidden"
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm"), blind=hidden) as environment:
        command = Command(tmp_path, environment)
        code, said = command.run("launcher=slurm", runs=hidden / "runs")
    assert code == 1 and "do not see this folder" in said and "runs=DIR" in said, said


def _sweep(folder: Path, seeds: list[int] | None, *overrides: str, cells: Sequence[PlannedCell] = ()) -> slurm.Sweep:
    return slurm.Sweep(cells, Order("test/sweep", "smoke", seeds, [*overrides], str(folder), "", False))


def test_an_array_is_watched_by_the_words_that_submitted_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = _sweep(tmp_path, [7], "optimizer.lr=0.003"), _sweep(tmp_path, [9], "optimizer.lr=0.003")
    one.folder.mkdir(parents=True)
    one.job.write_text("123")
    monkeypatch.setattr(slurm, "_states", lambda number: Counter((number == "123" and ["running"]) or []))
    assert slurm._last(one) == "123" and slurm._last(other) == ""


def test_cells_without_their_data_count_as_neither_done_nor_left(tmp_path: Path) -> None:
    cells = sweeps.cells(4, steps=1)
    own = _sweep(tmp_path, None, cells=[*cells[:3], replace(cells[3], missing="no tokens")])
    assert "0/3 cells done, 0 running; jobs: 1 running" in slurm._line(own, own.left(), Counter(running=1))


def test_cells_that_are_to_be_filled_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = sweeps.cells(1, steps=1, needs=str(tmp_path / "file"))
    own = _sweep(tmp_path, None, cells=[cell])
    assert runner.run([cell], own.runs, io.StringIO()).exit_code == 0
    filling = slurm.Sweep([cell], replace(own.order, fill=True))
    assert own.left() == [] and filling.left() == [cell]
    (tmp_path / "file").touch()
    assert runner.run([cell], own.runs, io.StringIO(), fill=True).exit_code == 0
    assert filling.left() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "there is no sbatch on"), (("machine.nodes=2",), "machine.nodes=2 does not go with launcher=slurm")],
)
def test_without_slurm_and_on_several_nodes_nothing_is_run(words, message, tmp_path):
    command = Command(tmp_path, {**os.environ, "PATH": str(tmp_path)})
    code, said = command.run("launcher=slurm", *words)
    (line,) = said.splitlines()
    assert code == 2 and line.startswith("error: ") and message in line and not list(command.runs.glob("cells/*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["launcher=slurm", "launcher.jobs=many"], "launcher: Value 'many' .* could not be converted to Integer"),
        (["launcher=slurm", "launcher.jobs=0"], "launcher: jobs must be a whole number of at least 1"),
        (["launcher=slurm", "launcher.job=1"], "launcher: Key 'job' not in 'Slurm'"),
        (["launcher=pbs"], "launcher=pbs: give launcher=slurm"),
        (["launcher.jobs=2"], "launcher.jobs=2: give launcher=slurm"),
        (["launcher=slurm", "launcher.minutes=1", "launcher.grace=60"], "launcher.grace=60 s leaves nothing"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        start.take(words)


def test_words_of_the_launcher_are_taken_out_of_the_others() -> None:
    found, rest = start.take(["cem/table3", "launcher=slurm", "launcher.jobs=8", "scale=cpu", "launcher.qos=low"])
    assert found == start.Slurm(jobs=8, qos="low") and rest == ["cem/table3", "scale=cpu"]
    assert start.take(["cem/table3"]) == (None, ["cem/table3"])
