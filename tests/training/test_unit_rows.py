"""Rows of unit norm after every optimiser step: alone, through Lightning, stacked, and on two devices with shares.

As a program (PORT FOLDER) this file is the second of the two processes.
"""

import copy
import functools
import os
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from paper_repro.base.errors import UsageError
from paper_repro.lightning_modules.cem_gaussian_process import CEMGaussianProcess
from paper_repro.models.common import project_rows_
from paper_repro.tests.training.doubles import Waves, by_hand
from paper_repro.training.ensemble import Ensemble
from paper_repro.training.machine import Ranks, Sharded, join, meeting_place
from paper_repro.training.optim import UnitAdamW, keep_unit_rows
from paper_repro.training.schedules import Cosine

ADAM = {"lr": 0.02, "betas": (0.9, 0.95), "weight_decay": 0.1}
OPTIMIZERS = {
    "AdamW": functools.partial(torch.optim.AdamW, **ADAM),
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adafactor": functools.partial(torch.optim.Adafactor, lr=0.05),
    "UnitAdamW": functools.partial(UnitAdamW, **ADAM),
}
UNIT = 4 * torch.finfo(torch.float32).eps
"""How far from 1 the norm of a row may be: its numbers are rounded once."""


class Rows(nn.Module):
    """10 -> 7 -> 1; both matrices have unit rows, neither number of rows is even."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Parameter(project_rows_(torch.randn(shape))) for shape in ((7, 10), (1, 7)))
        self.scale, self.shift = nn.Parameter(torch.ones(7)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        hidden = functional.silu(self.scale * functional.linear(x, self.first))
        return (functional.linear(hidden, self.last) + self.shift).squeeze(-1)


class UnitRows(CEMGaussianProcess):
    def parameter_groups(self):
        matrices = [parameter for parameter in self.parameters() if parameter.ndim > 1]
        vectors = [parameter for parameter in self.parameters() if parameter.ndim == 1]
        return [{"params": matrices, "unit_rows": True}, {"params": vectors, "weight_decay": 0.0}]


def module_of(seed=0, name="AdamW", dtype=torch.float32, **changes):
    torch.manual_seed(seed)
    return UnitRows(Rows().to(dtype), functools.partial(OPTIMIZERS[name], **changes), Cosine())


def projected(name, steps, batches=1, seed=0, dtype=torch.float32, **changes):
    """The weights after each step of the plain loop with the stock optimiser and a projection."""
    module, found = module_of(seed, "AdamW" if name == "UnitAdamW" else name, dtype, **changes), []

    @torch.no_grad()
    def project():
        for matrix in (module.model.first, module.model.last):
            matrix.div_(matrix.square().sum(-1, keepdim=True).sqrt())
        found.append(weights(module))

    by_hand(module, Waves(seed), steps, batches, after_step=project)
    return found


def weights(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def assert_same(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance, msg=name)


def are_unit(tensors):
    matrices = [tensor for tensor in tensors.values() if tensor.ndim > 1]
    return all(float((tensor.norm(dim=-1) - 1).abs().max()) <= UNIT for tensor in matrices)


class Watching(L.Callback):
    """Weights after every batch, and how many steps the optimiser took."""

    def __init__(self):
        self.after = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.after.append((trainer.global_step, weights(pl_module)))


def trainer_of(tmp_path, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": -1}
    rest = {"accelerator": "cpu", "devices": 1, "enable_checkpointing": False, "use_distributed_sampler": False}
    return L.Trainer(default_root_dir=tmp_path, **{**quiet, **rest, **options})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_lightning_projects_after_every_optimiser_step_and_never_between(name, tmp_path, monkeypatch):
    projections = []
    monkeypatch.setattr(
        "paper_repro.training.optim.project_rows_", lambda matrix: projections.append(project_rows_(matrix))
    )
    module, watching = module_of(0, name), Watching()
    trainer = trainer_of(tmp_path, max_steps=4, accumulate_grad_batches=2, callbacks=[watching])
    trainer.fit(module, datamodule=Waves(0))
    assert [step for step, _ in watching.after] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert len(projections) == (0 if name == "UnitAdamW" else 4 * 2)
    expected = projected(name, 4, 2)
    start = weights(module_of(0, name))
    for index, (step, found) in enumerate(watching.after):
        if index % 2 == 0:
            before = watching.after[index - 1][1] if index else start
            assert all(torch.equal(found[key], before[key]) for key in found)
        else:
            assert are_unit(found)
            # Four steps in float32, gradients summed in another order.
            assert_same(found, expected[step - 1], 1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_models_keep_unit_rows_each(name):
    modules = [module_of(seed, name, lr=0.02 * (1 + seed % 2)) for seed in range(3)]
    ensemble = Ensemble(modules, [Waves(seed) for seed in range(3)], 5, precision="64-true")
    for _ in range(5):
        ensemble.advance()
        for index in ensemble.layout.groups[0]:
            norms = torch.linalg.vector_norm(ensemble.layout.view(ensemble.values.detach(), index), dim=-1)
            torch.testing.assert_close(norms, torch.ones_like(norms), rtol=1e-14, atol=0)
    ensemble.unstack()
    for seed, module in enumerate(modules):
        expected = projected(name, 5, seed=seed, dtype=torch.float64, lr=0.02 * (1 + seed % 2))[-1]
        assert_same(weights(module), expected, 1e-10)


def test_models_kept_in_several_dtypes_are_not_stacked():
    modules = [module_of(seed) for seed in range(2)]
    for module in modules:
        module.model.first.data = module.model.first.data.bfloat16()
    with pytest.raises(UsageError, match=r"bfloat16 and torch\.float32.*machine\.stack=null"):
        Ensemble(modules, [Waves(seed) for seed in range(2)], 5)


def stepped(module, optimizer, steps):
    data = Waves(0)
    for step in range(*steps):
        optimizer.zero_grad()
        module.loss(data.train_batch(step)).backward()
        optimizer.step()


@pytest.mark.parametrize("way", ["AdamW to UnitAdamW", "fused AdamW to UnitAdamW", "UnitAdamW to AdamW"])
@pytest.mark.parametrize("keyed", [True, False])
def test_state_dicts_of_adamw_and_ours_are_interchangeable(way, keyed):
    one, two = (word.split()[-1] for word in way.split(" to "))
    module = module_of(0, one, **({"fused": True} if "fused" in way else {}))
    optimizer = module.optimizer(module.parameter_groups())
    keep_unit_rows(optimizer)
    stepped(module, optimizer, (0, 3))
    other = module_of(0, two)
    other.load_state_dict(module.state_dict())
    continued = other.optimizer(other.parameter_groups())
    keep_unit_rows(continued)
    state = copy.deepcopy(optimizer.state_dict())
    if not keyed:  # as saved by who never heard of unit rows
        for group in state["param_groups"]:
            group.pop("unit_rows", None)
    continued.load_state_dict(state)
    stepped(module, optimizer, (3, 6))
    stepped(other, continued, (3, 6))
    assert are_unit(weights(other))
    # Three steps in float32 by two kernels.
    assert_same(weights(other), weights(module), 1e-5)
    for mine, theirs in zip(continued.state.values(), optimizer.state.values(), strict=True):
        assert mine.keys() == theirs.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert float(mine["step"]) == float(theirs["step"]) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0"),
        ({"betas": (0.9, 1.0)}, r"betas=\(0\.9, 1\.0\)"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        UnitAdamW([nn.Parameter(torch.ones(2, 2))], **change)


def test_a_vector_in_a_group_with_unit_rows_is_refused():
    with pytest.raises(ValueError, match=r"matrices, found a parameter \(3,\)"):
        keep_unit_rows(torch.optim.SGD([{"params": [nn.Parameter(torch.ones(3))], "unit_rows": True}], lr=0.1))


SHARED = (("AdamW", "fsdp"), ("UnitAdamW", "fsdp"), ("AdamW", "ddp"))


def train_shared(rank, folder):
    """Four steps of two batches, one on each of two devices; the weights by optimiser and strategy."""
    found = {}
    for name, strategy in SHARED:
        module = module_of(0, name)
        chosen = Sharded() if strategy == "fsdp" else strategy
        trainer = trainer_of(folder, max_steps=4, strategy=chosen, devices=2, plugins=[Ranks(rank)])
        trainer.fit(module, datamodule=Waves(0))
        found[name, strategy] = {
            key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in weights(module).items()
        }
    return found


@pytest.mark.slow
def test_two_devices_project_whole_rows(tmp_path):
    store = meeting_place(2)
    command = [sys.executable, str(Path(__file__).resolve()), str(store.port), str(tmp_path)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)
    try:
        found = train_shared(join(0, 2, store, torch.device("cpu")), tmp_path)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        dist.destroy_process_group()
    assert process.returncode == 0, errors
    for (name, strategy), tensors in found.items():
        assert are_unit(tensors), strategy
        # Gradients averaged over two processes, four steps in float32.
        assert_same(tensors, projected(name, 4, 2)[-1], 1e-5)


if __name__ == "__main__":
    port, folder = sys.argv[1:]
    train_shared(join(1, 2, meeting_place(2, int(port)), torch.device("cpu")), Path(folder))
    dist.destroy_process_group()
