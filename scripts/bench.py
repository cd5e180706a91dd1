"""Speed as ratios: both sides interleaved in one process, medians beside spread and largest relative error.

    python scripts/bench.py NAME [--device cpu|cuda] [--json FILE]

A bench is a function ``bench_<name>(device)`` of this file that yields ``Comparison`` objects; nothing else lists it.
"""

import argparse
import functools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.errors import nearest
from paper_repro.files import write_atomically
from paper_repro.lightning_modules.cem_gaussian_process import CEMGaussianProcess
from paper_repro.models.cem import EnergyMLP, GaussianProcessRegressor
from paper_repro.seeds import mix
from paper_repro.training.ensemble import Ensemble
from paper_repro.training.machine import Machine, settings
from paper_repro.training.schedules import Cosine

PREFIX = "bench_"
ROUNDS = 7


@dataclass(frozen=True)
class Comparison:
    """Our side against the other, in milliseconds of wall clock per unit of work (lower is better)."""

    case: str
    unit: str
    ours_ms: list[float]
    other_ms: list[float]
    other: str
    relative_error: float
    """The largest relative difference of what both sides computed."""
    goal: float | None

    @property
    def ratio(self) -> float:
        return statistics.median(self.other_ms) / statistics.median(self.ours_ms)


def interleaved(
    ours: Callable[[], object], other: Callable[[], object], units: int, device: torch.device
) -> tuple[list[float], list[float]]:
    """Milliseconds per unit of both sides, one round of each in turn, after a round that is not counted."""
    times: tuple[list[float], list[float]] = ([], [])
    for round_index in range(ROUNDS + 1):
        for side, work in enumerate((ours, other)):
            _wait(device)
            start = time.perf_counter()
            work()
            _wait(device)
            if round_index:
                times[side].append((time.perf_counter() - start) / units * 1e3)
    return times


def bench_ensemble(device: torch.device) -> Iterator[Comparison]:
    """Models of CEM's Table 3 trained as one stack, against one after the other by a plain PyTorch loop."""
    cases = [(16, 32, 3.0), (10, 200, None)] if device.type == "cpu" else [(16, 32, None), (128, 32, 50.0)]
    for models, batch_size, goal in cases:
        for inner_steps in (1, 2, 8):
            case = f"{models} models, T={inner_steps}, batch {batch_size}"
            yield _ensemble_case(case, models, batch_size, inner_steps, goal, device)


def _ensemble_case(
    case: str, models: int, batch_size: int, inner_steps: int, goal: float | None, device: torch.device
) -> Comparison:
    steps_per_round = 20
    steps = steps_per_round * (ROUNDS + 1)
    data = [_Batches(seed, batch_size) for seed in range(models)]
    ensemble = Ensemble(_modules(models, inner_steps), data, steps, clip_norm=1.0, device=device)
    alone = [
        _Alone(module.to(device), own, steps) for module, own in zip(_modules(models, inner_steps), data, strict=True)
    ]

    def stacked() -> None:
        for _ in range(steps_per_round):
            ensemble.advance()

    def one_after_the_other() -> None:
        for trainer in alone:
            trainer.advance(steps_per_round)

    ours, other = interleaved(stacked, one_after_the_other, models * steps_per_round, device)
    ensemble.unstack()
    pairs = zip(ensemble.modules, (trainer.module for trainer in alone), strict=True)
    errors = [_relative_error(one, two) for one, two in pairs]
    return Comparison(case, "ms per model and step", ours, other, "plain loop, stock AdamW", max(errors), goal)


class _Batches(CounterBasedDataModule):
    """Batches of a smooth function of 10 inputs, all in memory: the cost of drawing a batch, not of making the data."""

    splits = ()

    def __init__(self, seed: int, batch_size: int, points: int = 10_000) -> None:
        super().__init__()
        self.batch_size = batch_size
        generator = torch.Generator().manual_seed(mix(seed, "bench"))
        self.inputs = torch.rand(points, 10, generator=generator) * 2 - 1
        self.targets = torch.sin(self.inputs @ torch.randn(10, generator=generator))
        self.order = torch.randperm(points, generator=generator)

    def train_batch(self, step: int) -> tuple[Tensor, Tensor]:
        first = step * self.batch_size % (len(self.order) - self.batch_size)
        chosen = self.order[first : first + self.batch_size]
        return self.inputs[chosen], self.targets[chosen]

    def evaluation_batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ()


class _Alone:
    """The loop that one would write for one model."""

    def __init__(self, module: CEMGaussianProcess, data: _Batches, steps: int) -> None:
        self.module, self.data, self.steps, self.step = module, data, steps, 0
        self.optimizer = module.optimizer(module.parameters())
        self.rate = self.optimizer.param_groups[0]["lr"]

    def advance(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.param_groups[0]["lr"] = self.rate * self.module.schedule.factor(self.step, self.steps)
            inputs, targets = (tensor.to(self.module.device) for tensor in self.data.train_batch(self.step))
            self.optimizer.zero_grad()
            self.module.loss((inputs, targets)).backward()
            nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            self.optimizer.step()
            self.step += 1


def _modules(count: int, inner_steps: int) -> list[CEMGaussianProcess]:
    optimizer = functools.partial(torch.optim.AdamW, lr=0.005, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    modules = []
    for seed in range(count):
        torch.manual_seed(mix(seed, "init"))
        model = GaussianProcessRegressor(EnergyMLP(64, 170, num_steps=inner_steps))
        modules.append(CEMGaussianProcess(model, optimizer, Cosine()))
    return modules


def _relative_error(one: nn.Module, two: nn.Module) -> float:
    pairs = [(a.detach(), b.detach()) for a, b in zip(one.parameters(), two.parameters(), strict=True)]
    difference = torch.stack([torch.linalg.vector_norm(a - b) for a, b in pairs])
    size = torch.stack([torch.linalg.vector_norm(b) for _, b in pairs])
    return float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(size))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _spread(times: list[float]) -> str:
    return f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f})"


def _line(comparison: Comparison) -> str:
    goal = f", goal {comparison.goal:g}x" if comparison.goal else ""
    return (
        f"{comparison.case}: {comparison.ratio:.2f}x{goal}; {comparison.unit}: ours {_spread(comparison.ours_ms)}, "
        f"{comparison.other} {_spread(comparison.other_ms)}; relative error {comparison.relative_error:.1e}"
    )


def _surroundings(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": f"{device.type}: {name}",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def main(arguments: list[str] | None = None) -> int:
    benches = {name.removeprefix(PREFIX): value for name, value in globals().items() if name.startswith(PREFIX)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help=", ".join(sorted(benches)))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="also write everything measured to this file")
    options = parser.parse_args(arguments)
    if options.name not in benches:
        parser.error(f"unknown bench {options.name!r}{nearest(options.name, benches)}")
    machine = Machine(accelerator=options.device, threads=1)
    with settings(machine):
        surroundings = _surroundings(machine.device)
        print(", ".join(f"{key} {value}" for key, value in surroundings.items()))
        comparisons = []
        for comparison in benches[options.name](machine.device):
            comparisons.append(comparison)
            print(_line(comparison), flush=True)
    if options.json:
        results = [{**asdict(item), "ratio": item.ratio, "rounds": ROUNDS} for item in comparisons]
        content = {"bench": options.name, **surroundings, "comparisons": results}
        write_atomically(options.json, json.dumps(content, indent=2).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
