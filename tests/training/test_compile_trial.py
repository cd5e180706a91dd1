"""The trial that says whether a kind of cells gains by a compiled loss: what it measures, keeps and leaves alone."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from paper_repro.base.files import locked
from paper_repro.cells.tasks import StopRequestedError
from paper_repro.tests.support.compiled import DROPOUT, ENERGY, LOSES, STEPS, Stop, keep, passes_of, place_of
from paper_repro.tests.training.energy import EnergyRegression
from paper_repro.training import compile_trial, compiling
from paper_repro.training.build import build
from paper_repro.training.compile_trial import Verdict
from paper_repro.training.compiling import by_verdict
from paper_repro.training.fit import Fit
from paper_repro.training.machine import Machine, settings
from paper_repro.training.passes import Passes, UntriableError

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or " " in sys.prefix,
    reason="no g++ here, or a blank in the environment's path, where torch compiles no C++",
)


def test_a_damaged_or_foreign_verdict_is_measured_again(auto, run, tmp_path, tried, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setenv("CXX", "sh")
    path = keep(auto(), LOSES)
    whole = path.read_bytes()
    content = json.loads(whole)
    spoilt = [
        b"",
        b"\xff\xfe{",
        b"[" * 50_000,
        whole[:-20],
        json.dumps({"kind": content["kind"]}).encode(),
        *(
            json.dumps({**content, "verdict": {**content["verdict"], name: value}}).encode()
            for name, value in (("gain", "much"), ("gain", float("nan")), ("refused", 3), ("other", 1), ("cold", True))
        ),
        json.dumps({**content, "kind": {**content["kind"], "torch": "0.1"}}).encode(),
    ]
    for number, damaged in enumerate(spoilt):
        path.write_bytes(damaged)
        assert run([auto()], tmp_path / str(number))[0].compiled.startswith("yes: "), damaged
        assert len(tried) == number + 1
        assert json.loads(path.read_bytes())["kind"] == content["kind"]
    path.unlink()
    path.mkdir()
    assert run([auto()], tmp_path / "folder")[0].compiled.startswith("yes: ")
    path.rmdir()


def test_what_makes_a_kind(auto, monkeypatch):
    first, _ = place_of(auto())
    same = [
        auto(seed=3),
        auto(lr=0.5),
        auto(999),
        auto(training__evaluate_every=50),
        auto(machine__workers=9),
    ]
    assert {place_of(one)[0] for one in same} == {first}
    other = [
        auto(model={"_target_": "paper_repro.tests.training.doubles.Small", "hidden": 7}),
        auto(data={"_target_": "paper_repro.tests.training.doubles.Waves", "seed": 0, "batch_size": 4}),
        auto(training__precision="bf16-mixed"),
        auto(machine__threads=2),
        auto(machine__implementation="reference"),
        auto(**ENERGY),
    ]
    places = {place_of(one)[0] for one in other}
    assert len(places) == len(other) and first not in places
    monkeypatch.setattr(compile_trial, "processor", lambda: "another")
    assert place_of(auto())[0] != first
    monkeypatch.undo()
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"edited")
    assert place_of(auto())[0] != first


@needs_compiler
@pytest.mark.parametrize("changes", [DROPOUT, ENERGY], ids=["dropout", "draws and carry"])
def test_a_trial_leaves_weights_gradients_random_numbers_and_carries_as_they_were(auto, changes):
    one = auto(**changes)
    with settings(Machine.of(one.config["machine"])):
        built, passes = passes_of(one)
        passes.context = torch.enable_grad
        before = {name: tensor.clone() for name, tensor in built.module.state_dict().items()}
        built.module.eval()
        torch.manual_seed(7)
        state = torch.get_rng_state()
        verdict = compile_trial.measure(built, passes)
    assert not verdict.refused and min(verdict.uncompiled, verdict.compiled, verdict.cold) > 0
    assert torch.equal(torch.get_rng_state(), state) and not built.module.training and built.module.carries == {}
    assert all(torch.equal(tensor, before[name]) for name, tensor in built.module.state_dict().items())
    assert all(parameter.grad is None for parameter in built.module.parameters())


def test_what_would_be_compiled_again_and_again_is_not_tried(auto, run, tmp_path, no_trial, monkeypatch):
    monkeypatch.setattr(compiling, "TRIAL_SECONDS", 0.0)
    monkeypatch.setattr(EnergyRegression, "constants", frozenset({"num_steps"}))
    built = build(auto(**ENERGY))
    assert len(Passes(built, torch.device("cpu"), torch.no_grad)) == 4  # one for each number of steps
    monkeypatch.setattr("paper_repro.training.passes.MOST_VARIANTS", 3)
    with pytest.raises(UntriableError, match="num_steps takes 4 values"):
        Passes(built, torch.device("cpu"), torch.no_grad)
    growing = auto(data={"_target_": "paper_repro.tests.training.doubles.Growing", "seed": 0})
    assert "several shapes" in run([growing], tmp_path)[0].compiled


def test_two_that_try_at_once_wait_for_one_another(auto, run, tmp_path, tried):
    path, kind = place_of(auto())
    path.parent.mkdir(parents=True, exist_ok=True)
    held, found = threading.Event(), []

    def other():
        with locked(path.with_suffix(".lock")):
            held.set()
            time.sleep(1.0)
            found.append([*tried])
            compile_trial.write(path, kind, LOSES)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    assert run([auto()], tmp_path)[0].compiled == "no: 600.0 ms a pass compiled, 500.0 ms uncompiled"
    thread.join()
    assert found == [[]] and not tried


def test_who_waits_for_a_trial_can_be_stopped_and_chooses_later(auto, run, tmp_path, tried, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setenv("CXX", "sh")
    path, _ = place_of(auto())
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")), pytest.raises(StopRequestedError):
        Fit().run([auto()], tmp_path, Stop(0))
    assert not tried and not [*tmp_path.rglob(compiling.FILE)]
    assert run([auto()], tmp_path)[0].compiled.startswith("yes: ") and tried == [auto().id]


def _children() -> set[psutil.Process]:
    """Return this process's children: tests before may have left some, as torch's pool of compilers."""
    return set(psutil.Process().children(recursive=True))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("exit 7", "its trial ended with exit code 7"),
        ("kill -9 $$", "its trial ended with signal 9"),
        ("sleep 60", "it was not compiled within 1 s"),
        ("exit 3", None),
    ],
)
def test_a_trial_that_dies_hangs_or_fills_the_disk_is_no_more_than_that(auto, tmp_path, monkeypatch, program, why):
    before = _children()
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{program}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    verdict = compile_trial.run(build(auto()), 1.0, lambda: False)
    assert verdict == (None if why is None else Verdict(refused=why))
    assert _children() <= before


def test_a_trial_ends_when_the_user_stops(auto, tmp_path, monkeypatch):
    before = _children()
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nsleep 60 &\nsleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    until = time.monotonic() + 0.5
    started = time.monotonic()
    assert compile_trial.run(build(auto()), 1000.0, lambda: time.monotonic() > until) is None
    assert time.monotonic() - started < 5 and _children() <= before


@needs_compiler
def test_a_kill_in_the_middle_of_a_trial_costs_no_cell(auto, run, tmp_path, tried):
    """The cell goes on uncompiled, its trial dies with it, and the next cell of the kind tries."""
    one = auto()
    program = """
        import json, sys
        from pathlib import Path
        from paper_repro.cells.tasks import Cell
        from paper_repro.tests.support.reports import Recorder
        from paper_repro.training import compiling
        from paper_repro.training.fit import Fit

        compiling.TRIAL_SECONDS = 0.0
        Fit().run([Cell(**json.loads(sys.argv[1]))], Path(sys.argv[2]), Recorder())
    """
    command = [sys.executable, "-c", textwrap.dedent(program), json.dumps({"id": one.id, "config": one.config})]
    process = subprocess.Popen([*command, str(tmp_path)])
    try:
        trial = None
        until = time.monotonic() + 120
        while trial is None and time.monotonic() < until and process.poll() is None:
            family = psutil.Process(process.pid).children(recursive=True)
            for child in family:
                with contextlib.suppress(psutil.Error):  # others, such as git, end meanwhile
                    trial = child if "paper_repro.training.compile_trial" in child.cmdline() else trial
            time.sleep(0.05)
        assert trial is not None
        time.sleep(1.0)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    psutil.wait_procs([trial], timeout=30)
    assert not trial.is_running()
    path, _ = place_of(one)
    assert not path.exists()
    assert run([one], tmp_path)[0].compiled == "no: its trial was cut short" and not tried
    assert run([auto(seed=1)], tmp_path / "next")[0].compiled.startswith("yes: ") and tried == [auto(seed=1).id]


@needs_compiler
def test_a_real_trial_decides_for_all_cells_of_its_kind(cell, auto, run, tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "TRIAL_SECONDS", 0.0)
    expected, found = run([cell(steps=STEPS)], tmp_path / "plain")[0], run([auto()], tmp_path / "auto")[0]
    path, kind = place_of(auto())
    verdict = compile_trial.read(path, kind)
    assert verdict is not None and not verdict.refused
    assert verdict.uncompiled > 0 and verdict.compiled > 0 and verdict.cold > 0.5
    assert found.compiled == by_verdict(verdict, STEPS).text
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-5)
    monkeypatch.setattr(compile_trial, "run", lambda *_: pytest.fail("tried twice"))
    again = run([auto(seed=5)], tmp_path / "second")[0]
    assert f"{verdict.uncompiled * 1e3:.1f} ms uncompiled" in again.compiled
