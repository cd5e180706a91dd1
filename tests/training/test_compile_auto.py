"""machine.compile=auto: what is chosen, that nothing else changes, and what goes wrong."""

import contextlib
import errno
import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.cells import planned, records, runner
from paper_repro.cells.tasks import StopRequestedError
from paper_repro.tests.support.compiled import (
    DROPOUT,
    ENERGY,
    GAINS,
    LOSES,
    STEPS,
    Stop,
    assert_same,
    keep,
    weights,
)
from paper_repro.tests.support.reports import Recorder
from paper_repro.training import compile_trial, compiled_code, compiling
from paper_repro.training.build import build
from paper_repro.training.compile_trial import Verdict
from paper_repro.training.compiling import Compiling, by_verdict, worth_a_trial
from paper_repro.training.fit import Fit
from paper_repro.training.machine import Machine
from paper_repro.training.passes import Passes

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or " " in sys.prefix,
    reason="no g++ here, or a blank in the environment's path, where torch compiles no C++",
)


def test_a_cell_of_ten_steps_is_not_even_timed(cell, auto, run, tmp_path, no_trial, monkeypatch):
    expected = run([cell(steps=10)], tmp_path / "plain")[0]
    monkeypatch.setattr(Passes, "seconds", lambda *_: pytest.fail("a pass was timed"))
    found = run([auto(10)], tmp_path / "auto")[0]
    assert (expected.compiled, found.compiled) == ("", "no: too short: 10 steps left")
    assert_same(found, expected, (tmp_path / "auto", tmp_path / "plain"), auto(10))


def test_a_run_whose_trial_would_cost_more_than_a_tenth_of_it_makes_none(cell, auto, run, tmp_path, no_trial):
    expected, found = run([cell(steps=STEPS)], tmp_path / "plain")[0], run([auto()], tmp_path / "auto")[0]
    assert found.compiled.startswith(f"no: too short for a trial: {STEPS} passes of ")
    assert_same(found, expected, (tmp_path / "auto", tmp_path / "plain"), auto())


def test_cells_of_one_kind_count_together(auto, run, tmp_path, tried, monkeypatch):
    monkeypatch.setattr(compiling, "TRIAL_SECONDS", 1e9)
    run([auto()], tmp_path / "alone")
    assert not tried
    run([auto(machine__alike_steps=10**15)], tmp_path / "in a sweep")
    assert len(tried) == 1


def test_what_a_trial_is_worth_and_what_its_verdict_means():
    assert worth_a_trial(0.1, 6_000) and not worth_a_trial(0.1, 5_900)
    assert by_verdict(GAINS, 1).compiled and not by_verdict(LOSES, 10**9).compiled
    slow = replace(GAINS, warm=10.0)
    assert not by_verdict(slow, 59).compiled and by_verdict(slow, 61).compiled
    assert by_verdict(slow, 59).text == (
        "no: too short: 250.0 ms a pass compiled, 500.0 ms uncompiled, 10.0 s to start, 59 passes left"
    )
    unmeasured = replace(GAINS, warm=None, cold=80.0)
    assert not by_verdict(unmeasured, 59).compiled and by_verdict(unmeasured, 61).compiled
    assert not by_verdict(replace(GAINS, gain=0.014), 10**9).compiled
    assert by_verdict(Verdict(refused="no lowering"), 10**9).text == "no: no lowering"
    verdict = compile_trial.judged([(0.5, 0.3), (0.7, 0.4), (0.6, 0.5)], 12.0)
    assert (verdict.uncompiled, verdict.compiled, verdict.gain, verdict.cold) == (0.6, 0.4, 0.2, 12.0)


@needs_compiler
def test_where_a_verdict_says_so_the_loss_is_compiled_with_equal_results_but_for_rounding(
    cell, auto, run, tmp_path, no_trial, compiled
):
    one = auto()
    path = keep(one, replace(GAINS, warm=None))
    expected, found = run([cell(steps=STEPS)], tmp_path / "plain")[0], run([one], tmp_path / "auto")[0]
    assert found.compiled.startswith("yes: 250.0 ms a pass compiled, 500.0 ms uncompiled, 2.5 s to start, 120 passes")
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-5)
    losses = [[value for _, value in outcome.curves["training_loss"]] for outcome in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, tensor in weights(tmp_path / "plain", one).items():
        torch.testing.assert_close(weights(tmp_path / "auto", one)[name], tensor, rtol=1e-4, atol=1e-6)
    warm = json.loads(path.read_text())["verdict"]["warm"]
    assert 0 < warm <= GAINS.cold
    assert [*compiled.glob("*/*.so")], "torch keeps its code elsewhere"


@needs_compiler
def test_a_probe_may_copy_a_module_that_was_compiled(auto, tmp_path, no_trial, monkeypatch):
    one = auto(probes={"copy": {"_target_": "paper_repro.tests.support.probes.Copying"}})
    keep(one, GAINS)
    recorder = Recorder()
    with (tmp_path / "open").open("w") as stream:
        monkeypatch.setattr(recorder, "stream", stream, raising=False)  # it cannot be copied, as the report of a worker
        (found,) = Fit().run([one], tmp_path / "auto", recorder)
    assert found.compiled.startswith("yes: ") and "total" in found.metrics


def test_where_it_would_lose_the_loss_is_not_compiled(cell, auto, run, tmp_path, no_trial, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("the loss was compiled"))
    keep(auto(), LOSES)
    expected, found = run([cell(steps=STEPS)], tmp_path / "plain")[0], run([auto()], tmp_path / "auto")[0]
    assert found.compiled == "no: 600.0 ms a pass compiled, 500.0 ms uncompiled"
    assert_same(found, expected, (tmp_path / "auto", tmp_path / "plain"), auto())


@needs_compiler
@pytest.mark.parametrize("changes", [{}, ENERGY], ids=["loss", "draws and carry"])
def test_an_interrupted_run_equals_an_undisturbed_one_bit_for_bit(auto, run, tmp_path, no_trial, changes):
    one = auto(**changes)
    path = keep(one, GAINS)
    expected = run([one], tmp_path / "undisturbed")[0]
    for stop in (30, 70):
        with pytest.raises(StopRequestedError):
            Fit().run([one], tmp_path / "stopped", Stop(stop))
        path.write_text("damaged")  # the choice is the run's own by now
    found = run([one], tmp_path / "stopped")[0]
    assert found.compiled == expected.compiled and found.compiled.startswith("yes: ")
    assert_same(found, expected, (tmp_path / "stopped", tmp_path / "undisturbed"), one)


def test_an_uncompiled_run_stays_so_whatever_later_verdicts_say(cell, auto, run, tmp_path, no_trial):
    keep(auto(), LOSES)
    with pytest.raises(StopRequestedError):
        Fit().run([auto()], tmp_path / "auto", Stop(5))
    keep(auto(), GAINS)
    found, expected = run([auto()], tmp_path / "auto")[0], run([cell(steps=STEPS)], tmp_path / "plain")[0]
    assert found.compiled == "no: 600.0 ms a pass compiled, 500.0 ms uncompiled"
    assert_same(found, expected, (tmp_path / "auto", tmp_path / "plain"), auto())


def test_without_a_compiler_nothing_is_tried_and_the_record_says_so(auto, run, tmp_path, no_trial, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    keep(auto(), GAINS)
    assert run([auto()], tmp_path)[0].compiled == "no: no C++ compiler no-such-compiler here"


@needs_compiler
def test_a_compiled_run_goes_on_uncompiled_where_the_compiler_is_gone(cell, auto, run, tmp_path, no_trial, monkeypatch):
    expected = run([cell(steps=STEPS)], tmp_path / "plain")[0]
    keep(auto(), GAINS)
    with pytest.raises(StopRequestedError):
        Fit().run([auto()], tmp_path / "auto", Stop(5))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(StopRequestedError):
        Fit().run([auto()], tmp_path / "auto", Stop(20))
    monkeypatch.delenv("CXX")
    found = run([auto()], tmp_path / "auto")[0]
    assert found.compiled.startswith("no: no C++ compiler no-such-compiler here any more; before: yes: 250.0 ms")
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-5)


class CannotError(Exception):
    __module__ = "torch._inductor.exc"


@pytest.mark.parametrize("works", [0, 1, 60])
@pytest.mark.parametrize(
    "error", [CannotError("no lowering\nmore"), OSError(errno.ENOSPC, "No space left on device")], ids=["torch", "disk"]
)
def test_a_compiler_that_fails_at_any_time_costs_no_cell(
    cell, auto, run, tmp_path, no_trial, monkeypatch, works, error
):
    calls = []

    def failing(function, **_):
        def call(*arguments):
            calls.append(len(calls))
            if len(calls) > works:
                raise error
            return function(*arguments)

        return call

    monkeypatch.setattr(torch, "compile", failing)
    monkeypatch.setenv("CXX", "sh")
    keep(auto(**DROPOUT), GAINS)
    expected = run([cell(steps=STEPS, **DROPOUT)], tmp_path / "plain")[0]
    found = run([auto(**DROPOUT)], tmp_path / "auto")[0]
    line = str(error).partition("\n")[0]
    assert found.compiled.startswith(f"no: it could not be compiled here ({line}); before: yes: ")
    assert len(calls) == works + 1
    assert_same(found, expected, (tmp_path / "auto", tmp_path / "plain"), auto(**DROPOUT))


def test_a_loss_of_other_faults_is_not_blamed_on_the_compiler(auto, tmp_path, no_trial, monkeypatch, recorder):
    def failing(function, **_):
        def call(*arguments):
            raise ZeroDivisionError("division by zero")

        return call

    monkeypatch.setattr(torch, "compile", failing)
    monkeypatch.setenv("CXX", "sh")
    keep(auto(), GAINS)
    with pytest.raises(ZeroDivisionError):
        Fit().run([auto()], tmp_path, recorder())


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_a_folder_that_takes_no_code_costs_no_cell(cell, auto, run, tmp_path, monkeypatch, tried, state):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setenv("CXX", "sh")
    refusal = "10 MiB free, 100 are needed" if state == "full" else "cannot write there (Read-only file system)"
    monkeypatch.setattr(compiled_code, "_refusal", lambda folder: refusal)
    expected = run([cell(steps=STEPS)], tmp_path / "plain")[0]
    found = run([auto()], tmp_path / "auto")[0]  # in a temporary folder
    assert found.compiled.startswith("yes: ") and tried == [auto().id]
    assert_same(found, expected, (tmp_path / "auto", tmp_path / "plain"), auto())
    monkeypatch.setattr(compile_trial, "run", lambda *_: None)
    found = run([auto()], tmp_path / "no disk at all")[0]
    assert found.compiled.startswith("no: ") and found.compiled.endswith(": no space left")
    monkeypatch.setattr(compiling, "TRIAL_SECONDS", 1e9)  # what a trial finds serves no other cell
    assert "too short for a trial" in run([auto(machine__alike_steps=10**15)], tmp_path / "sweep")[0].compiled


def test_the_record_says_what_was_chosen_and_the_id_does_not_depend_on_it(tmp_path):
    words = ["model.width=16", "model.num_steps=2", "data.window=32", "data.batch_size=4", "training.steps=3"]
    words += [
        "data.task.num_train=200",
        "data.task.num_test=20",
        "data.num_evaluation_batches=1",
        "probes.accuracy=null",
    ]
    one, plain = (planned.single("nrgpt/listops", [*words, f"machine.compile={word}"], 0) for word in ("auto", "false"))
    assert one.id == plain.id
    assert runner.run_cells([one], tmp_path, [tmp_path]).exit_code == 0
    record = records.read(records.record_path(tmp_path, one.id))
    assert record.provenance["compiled"] == "no: too short: 3 steps left" and "machine" not in record.config


def test_cells_trained_together_stay_uncompiled(auto, run, tmp_path, no_trial):
    found = run([auto(seed=seed) for seed in range(2)], tmp_path)
    assert {outcome.compiled for outcome in found} == {"no: cells that are trained together"}


def test_what_rank_0_chooses_every_rank_does(auto, tmp_path, no_trial, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for told, compiled in ((1, True), (0, False)):
        built = build(auto(machine__devices=2, training__accumulate=2))
        rank = SimpleNamespace(index=1, count=2, share=lambda value, told=told: told)
        compiling_ = Compiling(built, tmp_path, Recorder(), rank, contextlib.nullcontext)
        with compiling_.kept():
            compiling_.begin(0)
        assert (built.module._compiled is not None) is compiled
    assert not [*tmp_path.iterdir()]


def test_a_model_that_is_cut_among_devices_is_not_tried(auto, tmp_path, no_trial):
    built = build(auto(machine__devices=2, machine__strategy="fsdp", training__accumulate=2))
    one = Compiling(built, tmp_path, Recorder(), SimpleNamespace(index=0, count=2, share=int), contextlib.nullcontext)
    with one.kept():
        one.begin(0)
    assert one.text.startswith("no: machine.strategy=fsdp")


def test_what_has_no_loss_to_compile_is_not_tried(auto, run, tmp_path, no_trial, monkeypatch):
    monkeypatch.setattr(compiling, "TRIAL_SECONDS", 0.0)
    monkeypatch.setattr("paper_repro.training.module.PaperModule.uncompilable", "its gradients come from elsewhere")
    assert run([auto()], tmp_path)[0].compiled == "no: its gradients come from elsewhere"


@pytest.mark.parametrize("value", ["always", 1, None, "True"])
def test_another_value_is_refused(value):
    with pytest.raises(UsageError, match=r"machine\.compile=.*: expected false, true or auto"):
        Machine(compile=value)
