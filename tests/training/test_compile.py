import shutil
import sys

import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.tests.training.doubles import NOISY, assert_same_runs
from paper_repro.tests.training.test_energy_training import ENERGY
from paper_repro.training import single
from paper_repro.training.build import build

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or " " in sys.prefix,
    reason="no g++ here, or a blank in the environment's path, where torch compiles no C++",
)


@pytest.mark.slow
@needs_compiler
def test_a_compiled_loss_draws_the_random_numbers_of_an_uncompiled_one(cell):
    module = build(cell()).module
    module.loss = lambda batch: batch.sum() + torch.rand(5).sum()
    found = []
    for faster in (False, True):
        if faster:
            module.compile_loss()
        torch.manual_seed(3)
        loss, _ = (module._compiled or module.loss_and_carry)(torch.ones(2), {}, {})
        found.append(float(loss))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


STEPS = 120


@pytest.fixture
def auto(cell, monkeypatch):
    """Cells with machine.compile=auto, long enough to be compiled."""
    torch.compiler.reset()
    monkeypatch.setattr(single, "AUTO_FLOPS", 1)
    return lambda steps=STEPS, **changes: cell(steps=steps, machine__compile="auto", **changes)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("changes", [{}, ENERGY], ids=["loss", "draws and carry"])
def test_an_interrupted_compiled_run_equals_an_undisturbed_one_bit_for_bit(cell, auto, run, tmp_path, changes):
    one = auto(**changes)
    expected = run([one], tmp_path / "undisturbed")[0]
    found = run([one], tmp_path / "stopped", stops=(30, 70))[0]
    assert found.compiled == expected.compiled == "yes: machine.compile=auto"
    assert_same_runs([found], [expected], [one], (tmp_path / "stopped", tmp_path / "undisturbed"))
    plain = run([cell(steps=STEPS, **changes)], tmp_path / "plain")[0]
    assert found.metrics == pytest.approx(plain.metrics, rel=1e-5) and plain.compiled == ""


@pytest.mark.slow
def test_auto_says_why_it_does_not_compile(cell, auto, run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("the loss was compiled"))
    assert run([auto(10)], tmp_path / "short")[0].compiled == "no: too short: 10 passes"
    assert run([auto(**NOISY)], tmp_path / "dropout")[0].compiled.startswith("no: dropout")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert run([auto()], tmp_path / "absent")[0].compiled == "no: no C++ compiler no-such-compiler here"
    monkeypatch.setattr(single, "AUTO_FLOPS", 2e12)
    assert "FLOPs of matrix products, and auto compiles from 2e+12 on" in run([auto()], tmp_path / "few")[0].compiled
    monkeypatch.setattr("paper_repro.training.module.PaperModule.uncompilable", "its gradients come from elsewhere")
    assert run([auto()], tmp_path / "never")[0].compiled == "no: its gradients come from elsewhere"
    together = run([auto(seed=seed) for seed in range(2)], tmp_path / "together")
    assert {outcome.compiled for outcome in together} == {"no: cells that are trained together"}


@pytest.mark.slow
@needs_compiler
def test_auto_trains_uncompiled_where_the_compiler_fails_and_true_says_what_to_do(
    cell, auto, run, tmp_path, monkeypatch
):
    def failing(*_, **__):
        raise RuntimeError("no lowering\nmore")

    expected = run([cell(steps=STEPS)], tmp_path / "plain")
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", failing)
    found = run([auto()], tmp_path / "auto")
    assert_same_runs(found, expected, [auto()], (tmp_path / "auto", tmp_path / "plain"))
    torch.compiler.reset()
    with pytest.raises(UsageError, match=r"torch cannot compile this loss here \(.*\): set machine\.compile=false"):
        run([cell(machine__compile=True)], tmp_path / "true")
