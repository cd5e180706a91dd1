"""A small data module and small modules, importable by configs, and comparisons of what training leaves."""

from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.lightning_modules.cem_gaussian_process import CEMGaussianProcess
from paper_repro.training.schedules import Exponential

DOUBLES_NAME = __name__
KEEP = {
    "schedule": {"_target_": "paper_repro.training.schedules.Constant"},
    "training__evaluate_every": 3,
    "training__keep": "test_rmse",
    "lr": 0.2,
    "steps": 24,
}
"""So large a rate that the test error is lowest before the end, which the tests check."""
NOISY = {"model": {"_target_": f"{DOUBLES_NAME}.Small", "dropout": 0.3}}


def by_hand(module, data, steps, batches=1, clip_norm=None, after_step=lambda: None):
    """The losses of the plain loop, which every way of training must equal: the mean loss of a step's batches, its
    gradients clipped once, the module's optimiser and schedules.
    """
    groups, schedules = module.groups_and_schedules()
    optimizer, dtype, losses = module.optimizer(groups), next(module.parameters()).dtype, []
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(steps):
        for group, rate, schedule in zip(optimizer.param_groups, rates, schedules, strict=True):
            group["lr"] = rate * schedule.factor(step, steps)
        optimizer.zero_grad()
        each = []
        for number in range(batches):
            torch.manual_seed(mix(module.seed, "step", step, *([number] if number else [])))
            each.append(module.loss(tuple(tensor.to(dtype) for tensor in data.train_batch(step * batches + number))))
        mean = torch.stack(each).mean()
        mean.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        optimizer.step()
        after_step()
        losses.append(float(mean.detach()))
    return losses


def weights(folder, cell):
    return load_file(folder / cell.id / "weights.safetensors")


def assert_same_weights(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def assert_same_runs(found, expected, cells, folders):
    """Two runs of the cells, each with its folder, left the same outcomes and weights, bit for bit."""
    for one, two, cell in zip(found, expected, cells, strict=True):
        assert (one.status, one.metrics, one.curves) == (two.status, two.metrics, two.curves)
        assert_same_weights(*(weights(folder, cell) for folder in folders))


def assert_close_weights(found, expected, relative):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        distance = torch.linalg.vector_norm(found[name] - tensor) / torch.linalg.vector_norm(tensor)
        assert not float(distance) > relative, name  # 0 / 0 where both are all zeros


def assert_close_runs(found, expected, cell, folders, relative):
    """Two runs of a cell, each with its folder, left the same but for rounding; curves are kept in float32."""
    assert found.status == "finished", found.note
    assert found.metrics == pytest.approx(expected.metrics, rel=relative)
    assert found.curves.keys() == expected.curves.keys()
    for name, points in expected.curves.items():
        steps, values = zip(*points, strict=True)
        assert [step for step, _ in found.curves[name]] == [*steps]
        assert [value for _, value in found.curves[name]] == pytest.approx(values, rel=max(relative, 2.0**-23))
    assert_close_weights(*(weights(folder, cell) for folder in folders), relative)


class Waves(CounterBasedDataModule):
    """y = sum of sines of 10 inputs with seeded frequencies; from step ``poison_from`` on the targets are NaN."""

    splits = ("train", "test")

    def __init__(self, seed: int, batch_size: int = 8, points: int = 64, poison_from: int | None = None) -> None:
        super().__init__()
        self.seed, self.batch_size, self.poison_from = seed, batch_size, poison_from
        generator = torch.Generator().manual_seed(mix(seed, "waves"))
        self.inputs = torch.rand(points, 10, generator=generator) * 2 - 1
        frequencies = torch.randn(10, generator=generator) * 2
        self.targets = torch.sin(self.inputs * frequencies).sum(-1)

    def train_batch(self, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(mix(self.seed, "batch", step))
        chosen = torch.randint(len(self.inputs), (self.batch_size,), generator=generator)
        targets = self.targets[chosen]
        if self.poison_from is not None and step >= self.poison_from:
            targets = targets * torch.nan
        return self.inputs[chosen], targets

    def evaluation_batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        chosen = slice(0, 48) if split == "train" else slice(48, None)
        yield from zip(self.inputs[chosen].split(20), self.targets[chosen].split(20), strict=True)

    def data_hashes(self) -> dict[str, str]:
        return {"seed": str(self.seed)}


class Damaged(Waves):
    """Waves whose fourth batch cannot be read."""

    def train_batch(self, step: int) -> tuple[Tensor, Tensor]:
        if step == 3:
            raise UsageError("batch 3 is damaged: copy the data anew")
        return super().train_batch(step)


class Small(nn.Module):
    """10 -> 6 -> 1 with a norm, a buffer, and with ``dropout`` random numbers."""

    def __init__(self, hidden: int = 6, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(10, hidden), nn.LayerNorm(hidden), nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("shift", torch.randn(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.dropout(F.silu(self.norm(self.first(x)) + self.shift))).squeeze(-1)


class Energetic(nn.Module):
    """One step down E(x) = sum of w . tanh(A x), whose gradient the forward pass takes itself; the sum of its end."""

    def __init__(self, inputs: int = 10, hidden: int = 6, functional: bool = True) -> None:
        super().__init__()
        self.matrix, self.last = nn.Linear(inputs, hidden, bias=False), nn.Linear(hidden, 1, bias=False)
        self.functional = functional

    def energy(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.matrix(x))).sum()

    def forward(self, x: Tensor) -> Tensor:
        if self.functional:
            return (x - torch.func.grad(self.energy)(x)).sum(-1)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.energy(x), x, create_graph=True)
            return (x - slope).sum(-1)


class TwoGroups(CEMGaussianProcess):
    """Matrices decay and learn slowly, vectors do neither and have a schedule of their own."""

    def parameter_groups(self) -> list[dict]:
        trained = [p for p in self.parameters() if p.requires_grad]
        return [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.5, "lr": 0.004},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0, "schedule": Exponential()},
        ]


class UnitRows(CEMGaussianProcess):
    def parameter_groups(self):
        matrices = [parameter for parameter in self.parameters() if parameter.ndim > 1]
        vectors = [parameter for parameter in self.parameters() if parameter.ndim == 1]
        return [{"params": matrices, "unit_rows": True}, {"params": vectors, "weight_decay": 0.0}]
