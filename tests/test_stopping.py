"""SIGINT, SIGTERM and SIGHUP: what has nothing to save ends at once, with its children, and the next call goes on."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from paper_repro.base.errors import ROOT, STOPPED, STOPPING
from paper_repro.tests.support import sweeps
from paper_repro.tests.support.slow_task import HANGS_VARIABLE

KEPT = "interrupted after 0 of 18 cells; the same command goes on from here"


def _imports_torch(process: psutil.Process) -> bool:
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(OSError):  # it has ended
            if "libtorch" in Path(f"/proc/{one.pid}/maps").read_text():
                return True
    return False


def _ended(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Send a signal, and check that the command and all that it started have ended soon."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait(10) == 130
    sweeps.wait_for(lambda: not any(map(_is_alive, family)), seconds=2)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", STOPPING)
def test_a_command_that_imports_ends_at_once_without_a_traceback(tmp_path: Path, number: signal.Signals) -> None:
    command = [*sweeps.PYTHON, str(ROOT / "scripts" / "train.py"), "cem/gaussian_process", "training.steps=1000000"]
    environment = {**os.environ, "PAPER_REPRO_RUNS": str(tmp_path / "runs")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            sweeps.wait_for(lambda: _imports_torch(psutil.Process(process.pid)))
            _ended(process, number)
        finally:
            process.terminate()
        out, err = process.communicate()
    assert (out, err.decode()) == (b"", f"{STOPPED}\n")
    assert "Traceback" not in "".join(path.read_text() for path in tmp_path.glob("runs/logs/*"))


def _sleeps(process: psutil.Process) -> bool:
    try:
        return process.name() == "sleep"
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", STOPPING)
def test_cells_without_a_step_end_at_once_with_what_they_have_called(tmp_path, number, monkeypatch):
    papers, runs, log = tmp_path / "papers", tmp_path / "runs", tmp_path / "task.log"
    sweeps.write_artifact(papers, steps=1, delay=0.0, target=sweeps.HANGING)
    monkeypatch.setenv(HANGS_VARIABLE, "yes")
    process = sweeps.start(papers, runs, log)
    own = psutil.Process(process.pid)
    sweeps.wait_for(lambda: sum(map(_sleeps, own.children(recursive=True))) == 2)
    _ended(process, number)
    assert (tmp_path / "runs.out").read_text().splitlines()[-1] == KEPT
    assert not list(runs.rglob("lease"))
    monkeypatch.delenv(HANGS_VARIABLE)
    assert sweeps.start(papers, runs, log).wait(60) == 0
    assert set(sweeps.steps_by_cell(log).values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_saves_stops_and_the_next_call_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    papers, runs, log = tmp_path / "papers", tmp_path / "runs", tmp_path / "task.log"
    sweeps.write_artifact(papers, steps=60, delay=0.02)  # four seconds, so that the signal finds it at work
    process = sweeps.start(papers, runs, log)
    sweeps.wait_for(lambda: sum(sweeps.steps_by_cell(log).values()) > 20)
    process.send_signal(number)
    _ended(process, signal.SIGHUP)  # as a terminal that closes sends it: only Ctrl-C hurries
    said = (runs.parent / f"{runs.name}.out").read_text()
    assert said.endswith("\ninterrupted after 0 of 18 cells; the same command goes on from here\n")
    assert not list(runs.rglob("lease")) and not list(runs.rglob("table.md")), "there is nothing to show"
    again = sweeps.start(papers, runs, log)
    assert again.wait(60) == 0
    assert set(sweeps.steps_by_cell(log).values()) == {60}, "an interrupted cell repeats no step"


ENDING = """
import os, sys, time
from paper_repro.base.errors import run_main
class Ending:
    def __del__(self):  # while the interpreter ends, after it has restored the default handlers
        os.write(1, b"ending\\n")
        time.sleep(0.3)
ending = Ending()
def main(_):
    print("ready", flush=True)
    time.sleep(60)
sys.exit(run_main(main))
"""


def test_a_signal_while_a_stopped_command_ends_changes_no_exit_code() -> None:
    process = subprocess.Popen([*sweeps.PYTHON, "-c", ENDING], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == b"ending\n"
    process.send_signal(signal.SIGHUP)
    assert process.wait(10) == 130
