"""Steps in micro-batches, in shares of devices, and as graphs equal those of the whole batch but for rounding."""

import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.tests.support.reports import Recorder
from paper_repro.tests.training.doubles import NOISY, Small, assert_close_runs
from paper_repro.tests.training.test_energy_training import EXACT
from paper_repro.training import steps
from paper_repro.training.build import build
from paper_repro.training.ensemble import Ensemble
from paper_repro.training.fit import Fit
from paper_repro.training.steps import Graphs, gradients_of, in_micro_batches
from paper_repro.training.tensors import tensors_of

RELATIVE = 1e-9
"""Sums in another order differ by no more in float64."""
KINDS = ("ebt/transformer", "ebt/s1", "ebt/s2")


def without_noise(model):
    """The noise of inner steps is drawn inside the step, for other rows."""
    return ["data.batch_size=7", *(["+module.thinking.noise=0.0"] if model != "ebt/transformer" else [])]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3])
def test_micro_batches_give_the_losses_and_weights_of_the_whole_batch(kind, rows, language, run, tmp_path):
    quiet = without_noise(kind)
    cell, parts = language(*quiet, model=kind), language(*quiet, f"machine.micro_batch={rows}", model=kind)
    assert cell.id == parts.id
    (expected,), (found,) = run([cell], tmp_path / "whole"), run([parts], tmp_path / "parts")
    assert_close_runs(found, expected, cell, (tmp_path / "parts", tmp_path / "whole"), RELATIVE)


def test_micro_batches_under_autocast_add_up_too(cell, run, tmp_path):
    one, parts = (cell(training__precision="bf16-mixed", machine__micro_batch=most) for most in (None, 2))
    (expected,), (found,) = run([one], tmp_path / "whole"), run([parts], tmp_path / "parts")
    assert_close_runs(found, expected, one, (tmp_path / "parts", tmp_path / "whole"), 0.02)


def test_out_of_memory_halves_the_rows_from_the_last_checkpoint(cell, run, tmp_path, monkeypatch):
    whole = Small.forward

    def forward(self, x):
        if torch.is_grad_enabled() and len(x) > 3 and taken[0] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        taken[0] += torch.is_grad_enabled()
        return whole(self, x)

    taken = [0]
    one = cell(machine__checkpoint_every_steps=1, machine__micro_batch="auto")
    (expected,) = run([cell()], tmp_path / "whole")
    monkeypatch.setattr(Small, "forward", forward)
    report = Recorder()
    (found,) = Fit().run([one], tmp_path / "halved", report)
    assert found.status == "finished" and "micro-batches of 2 rows" in found.note
    assert_close_runs(found, expected, one, (tmp_path / "halved", tmp_path / "whole"), 1e-4)
    assert [step for step, *_ in report.seen] == sorted(step for step, *_ in report.seen)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[:2])
def test_devices_share_the_rows_of_a_batch_where_there_are_fewer_batches(kind, language, run, tmp_path):
    quiet = without_noise(kind)
    one, two = language(*quiet, model=kind), language(*quiet, "machine.devices=2", model=kind)
    (expected,), (found,) = run([one], tmp_path / "one"), run([two], tmp_path / "two", stops=(2,))
    assert_close_runs(found, expected, one, (tmp_path / "two", tmp_path / "one"), RELATIVE)


def as_on_a_gpu(work):
    """Record work as a CUDA graph does: later calls run it on the same tensors and leave results in the same place."""
    ended = work()

    def replay():
        again = work()
        for own, value in zip(tensors_of(ended), tensors_of(again), strict=True):
            if own.data_ptr() != value.data_ptr():
                own.copy_(value)

    return replay, ended


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_replayed_steps_are_those_of_the_loss(kind, accumulate, language, run, tmp_path, monkeypatch):
    sizes = ("data.batch_size=7", f"training.accumulate={accumulate}", "training.steps=6")
    cell = language(*sizes, "data.num_evaluation_batches=3", model=kind)
    (expected,) = run([cell], tmp_path / "eager")
    made, evaluations = [], []

    def step_by(built):
        def graphs(compute):
            made.append(Graphs(compute, built.module.constants, accumulate == 1))
            return made[-1]

        built.module.step_by(None, graphs)

    def evaluation(*args, **keywords):
        evaluations.append(Graphs(*args, **keywords))
        return evaluations[-1]

    monkeypatch.setattr(steps, "capture", as_on_a_gpu)
    monkeypatch.setattr("paper_repro.training.single._step_by", step_by)
    monkeypatch.setattr("paper_repro.training.module.Graphs", evaluation)
    (found,) = run([cell], tmp_path / "graphs", stops=(2,))
    assert_close_runs(found, expected, cell, (tmp_path / "graphs", tmp_path / "eager"), RELATIVE)
    assert all(not one.off for one in (*made, *evaluations))
    assert evaluations and all(str(one) == "yes, 2 of them" for one in evaluations), "the last batch is shorter"


@pytest.mark.parametrize("kind", [EXACT, {"training__precision": "64-true", **NOISY}], ids=["energy", "dropout"])
def test_a_stack_is_replayed_too(kind, cell, monkeypatch):
    monkeypatch.setattr(steps, "capture", as_on_a_gpu)

    def taken(graphs):
        built = [build(cell(seed=seed, **kind)) for seed in range(2)]
        both = [one.module for one in built], [one.data for one in built]
        stack = Ensemble(*both, steps=6, clip_norm=0.1, precision="64-true", graphs=graphs)
        return torch.stack([stack.advance() for _ in range(6)]), stack.state_dict()["tensors"]

    eager, replayed = taken(None), taken(Graphs)
    for found, expected in zip(replayed, eager, strict=True):
        torch.testing.assert_close(found, expected, rtol=RELATIVE, atol=RELATIVE)


def test_a_step_that_cannot_be_recorded_runs_as_it_is_or_is_refused(cell, monkeypatch):
    def refuse(work):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(steps, "capture", refuse)
    built = build(cell())
    module, batch = built.module, built.data.train_batch(0)
    compute = gradients_of(module.loss_of_step, [*module.parameters()])
    expected = compute(batch, {}, {})
    graphs = Graphs(compute)
    for found, other in zip(tensors_of(graphs(batch, {}, {})), tensors_of(expected), strict=True):
        assert torch.equal(found, other)
    assert str(graphs) == "no: operation not permitted when stream is capturing"
    with pytest.raises(UsageError, match=r"machine\.cuda_graph=true.*stream is capturing"):
        Graphs(compute, must=True)(batch, {}, {})


def test_graphs_of_too_many_shapes_are_not_kept(cell, monkeypatch):
    monkeypatch.setattr(steps, "capture", as_on_a_gpu)
    built = build(cell(data__batch_size=32))
    module, (inputs, targets) = built.module, built.data.train_batch(0)
    graphs = Graphs(gradients_of(module.loss_of_step, [*module.parameters()]))
    for rows in range(1, 20):
        loss, *_ = graphs((inputs[:rows], targets[:rows]), {}, {})
        torch.testing.assert_close(loss, module.loss((inputs[:rows], targets[:rows])).detach())
    assert "more than 16 shapes" in graphs.off


def test_micro_batches_of_a_batch_without_targets_weigh_nothing():
    weight = torch.ones(3, requires_grad=True)

    def step(batch, draws, carry):
        return (batch * weight).sum() / max(len(batch), 1), carry

    def split(batch, draws, carry, parts):
        return [(batch[part], {}) for part in parts]

    found = in_micro_batches(gradients_of(step, [weight]), split, lambda *_: torch.tensor(0), 1)
    loss, _, (gradient,) = found(torch.ones(2, 3), {}, {})
    assert loss == 0 and not gradient.any()
