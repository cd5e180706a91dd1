"""machine.strategy=fsdp on two and four processes of a CPU, against the same cells on one device."""

import copy
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from paper_repro.base.errors import UsageError
from paper_repro.cells import planned as planning
from paper_repro.cells.tasks import Cell, StopRequestedError
from paper_repro.tests.support.watched_train import bytes_of
from paper_repro.tests.training.doubles import assert_close_runs
from paper_repro.training import single
from paper_repro.training.build import build
from paper_repro.training.fit import Fit
from paper_repro.training.machine import Rank, Ranks, Sharded, join, meeting_place
from paper_repro.training.module import PaperModule

NRGPT = [
    *("model.width=16", "model.num_steps=2", "data.window=32", "data.batch_size=4", "data.num_evaluation_batches=2"),
    *("data.task.num_train=200", "data.task.num_test=20", "probes.accuracy=null", "optimizer.lr=0.01"),
    *("model.tie_output=true", "model.dropout=0.2", "machine.recompute=true"),
]
EVALUATED = {"evaluate_every": 2, "keep": "val_loss", "clip_norm": 0.1}
CEM = [
    *("data.num_train=64", "data.num_test=32", "data.batch_size=8", "data.num_features=32"),
    *("model.width=7", "model.block.hidden=9", "model.block.num_steps=2", "model.block.learn_step_size=true"),
]
# Unlike Adam's, its steps are as large as the gradients.
SGD = {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.05, "momentum": 0.9}
# Means over two processes and sums over batches in a row round differently; six steps amplify it.
RELATIVE = 1e-5
# One rounding to bfloat16 that falls to the other side; lost moments would change six steps of 0.01 by far more.
RELATIVE_BF16 = 2.0**-8


def planned(cache, experiment, words, machine, training, optimizer=None) -> Cell:
    """A cell that other processes can build: six steps of four batches."""
    found = planning.single(experiment, [*words, f"machine.cache={cache}"], 0)
    config: dict[str, Any] = copy.deepcopy(found.config)
    config["training"].update({"steps": 6, "accumulate": 4, **training})
    config["machine"].update({"stack": None, "checkpoint_every_seconds": None, "progress_every_seconds": 0, **machine})
    config["optimizer"] = optimizer or config["optimizer"]
    return Cell(found.id, config)


def pair(cache, experiment, words, count=2, **changes) -> list[Cell]:
    """The same cell on one device and, shared out, on several."""
    machines = ({}, {"devices": count, "strategy": "fsdp"})
    return [planned(cache, experiment, words, machine, **changes) for machine in machines]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_devices_with_a_share_each_equal_one_and_hold_no_more(count, recorder, run, tmp_path, monkeypatch):
    strategies, worst, gathered = [], [], []

    def step_loss(self, *arguments):
        gathered[:] = self.parameters()
        return real(self, *arguments)

    class Seen(Sharded):
        def share_out(self):
            own = [*self.lightning_module.parameters()]
            self.total = sum((12 if parameter.requires_grad else 4) * parameter.numel() for parameter in own)
            strategies.append(self)
            super().share_out()

    class Looking(recorder):
        """Between the steps rank 0 has its share of parameters, gradients and moments, and no whole parameter."""

        def progress(self, step, steps, loss):
            (strategy,) = strategies
            shares = [*strategy.lightning_module.parameters()]
            state = strategy.optimizers[0].state
            trained = [share for share in shares if share.requires_grad]
            moments = [state[share][name] for share in trained for name in ("exp_avg", "exp_avg_sq")]
            assert all(isinstance(tensor, DTensor) for tensor in (*shares, *moments))
            assert all(share.grad.to_local().shape == share.to_local().shape for share in trained)
            worst.append(bytes_of([*shares, *moments]) / strategy.total)
            assert len(gathered) == len(shares) and not any(isinstance(whole, DTensor) for whole in gathered)
            assert all(whole.untyped_storage().nbytes() == 0 and whole.grad is None for whole in gathered)
            super().progress(step, steps, loss)

    real = PaperModule.step_loss
    monkeypatch.setattr(PaperModule, "step_loss", step_loss)
    monkeypatch.setattr(single, "Sharded", Seen)
    one, several = pair(tmp_path / "cache", "nrgpt/listops", NRGPT, count, training=EVALUATED)
    expected = run([one], tmp_path / "one")[0]
    report = Looking()
    found = Fit().run([several], tmp_path / "several", report)[0]
    assert len(report.seen) == 6
    # Shards are cut as torch.chunk cuts, the first is the largest: no rank holds more than rank 0.
    assert max(worst) <= 1.1 / count, "parameters and moments of rank 0, as a share of those of one device"
    assert {"best_val_loss", "best_step"} <= found.metrics.keys()
    assert_close_runs(found, expected, one, (tmp_path / "several", tmp_path / "one"), RELATIVE)


@pytest.mark.slow
def test_a_run_in_bf16_goes_from_one_device_to_two_shares_and_back(recorder, run, tmp_path):
    mixed = {**EVALUATED, "precision": "bf16-mixed"}
    one, two = pair(tmp_path / "cache", "nrgpt/listops", NRGPT, training=mixed)
    expected = run([one], tmp_path / "whole")[0]
    for cell, stop in ((one, 1), (two, 3)):
        with pytest.raises(StopRequestedError):
            Fit().run([cell], tmp_path / "moved", recorder(stop))
    found = Fit().run([one], tmp_path / "moved", recorder())[0]
    assert_close_runs(found, expected, one, (tmp_path / "moved", tmp_path / "whole"), RELATIVE_BF16)


@pytest.mark.slow
def test_steps_as_large_as_the_gradients_and_a_parameter_without_dimensions(run, tmp_path):
    one, two = pair(tmp_path / "cache", "cem/gaussian_process", CEM, training={"clip_norm": None}, optimizer=SGD)
    assert any(parameter.ndim == 0 for parameter in build(one).module.parameters())
    expected, found = run([one], tmp_path / "one")[0], run([two], tmp_path / "two")[0]
    assert_close_runs(found, expected, one, (tmp_path / "two", tmp_path / "one"), RELATIVE)


def test_loss_scaling_is_refused_before_any_process_starts(cell, recorder, tmp_path):
    machine = {"machine__devices": 2, "machine__strategy": "fsdp", "training__accumulate": 2}
    with pytest.raises(UsageError, match=r"16-mixed.*bf16-mixed"):
        Fit().run([cell(training__precision="16-mixed", **machine)], tmp_path, recorder())


def test_an_optimiser_that_needs_whole_parameters_is_named(cell, tmp_path):
    parts = build(cell(optimizer={"_target_": "torch.optim.Adafactor", "_partial_": True}))
    join(0, 1, meeting_place(1), torch.device("cpu"))
    try:
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            strategy=Sharded(),
            plugins=[Ranks(Rank())],
            max_steps=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            default_root_dir=tmp_path,
        )
        with pytest.raises(UsageError, match=r"Adafactor needs .*machine\.strategy=ddp"):
            trainer.fit(parts.module, datamodule=parts.data)
    finally:
        dist.destroy_process_group()
