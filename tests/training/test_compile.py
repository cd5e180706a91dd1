import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file

from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import StopRequestedError
from paper_repro.training.build import build
from paper_repro.training.fit import Fit
from paper_repro.training.machine import Machine

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or " " in sys.prefix,
    reason="no g++ here, or a blank in the environment's path, where torch compiles no C++",
)


@pytest.mark.slow
@needs_compiler
def test_a_compiled_run_equals_an_eager_one_and_takes_over_its_checkpoint(cell, run, recorder, tmp_path):
    eager, compiled = cell(steps=6), cell(steps=6, machine__compile=True)
    expected = run([eager], tmp_path / "eager")[0]
    with pytest.raises(StopRequestedError):
        Fit().run([eager], tmp_path / "compiled", recorder(2))
    found = run([compiled], tmp_path / "compiled")[0]
    first, second = (outcome.curves["training_loss"] for outcome in (found, expected))
    # float32 has 7 digits; a few are lost where a fused kernel sums in another order.
    assert [value for _, value in first] == pytest.approx([value for _, value in second], rel=1e-5)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-5)
    weights = [load_file(tmp_path / name / eager.id / "weights.safetensors") for name in ("eager", "compiled")]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-5, atol=1e-6)


@needs_compiler
def test_the_training_loss_is_what_is_compiled(cell, recorder, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
    Fit().run([cell(steps=2, machine__compile=True)], tmp_path, recorder())
    assert [function.__name__ for function in compiled] == ["loss"]


@needs_compiler
def test_a_compiled_loss_draws_the_random_numbers_of_an_uncompiled_one(cell):
    module = build(cell()).module
    module.loss = lambda batch: batch.sum() + torch.rand(5).sum()
    found = []
    for compiled in (False, True):
        if compiled:
            module.compile_loss()
        torch.manual_seed(3)
        loss, _ = (module._compiled or module.loss_and_carry)(torch.ones(2), {}, {})
        found.append(float(loss))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_without_a_compiler_the_message_says_what_to_install(cell, recorder, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    Machine().check_compiler()
    with pytest.raises(UsageError, match=r"machine\.compile=true needs.*no-such-compiler.*install"):
        Fit().run([cell(machine__compile=True)], tmp_path, recorder())


def test_cells_trained_together_are_not_compiled(cell, recorder, tmp_path):
    with pytest.raises(UsageError, match=r"machine\.compile=true.*machine\.stack=null"):
        Fit().run([cell(seed=seed, machine__compile=True) for seed in range(2)], tmp_path, recorder())


def test_a_loss_that_torch_cannot_compile_is_the_users_to_switch_off(cell, recorder, tmp_path, monkeypatch):
    class CannotError(Exception):
        __module__ = "torch._dynamo.exc"

    def failing(function, **_):
        def call(batch):
            raise CannotError("no lowering\nmore")

        return call

    monkeypatch.setattr(torch, "compile", failing)
    monkeypatch.setenv("CXX", "sh")
    with pytest.raises(UsageError, match=r"\(no lowering\): set machine\.compile=false"):
        Fit().run([cell(machine__compile=True)], tmp_path, recorder())
