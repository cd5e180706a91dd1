"""Small models trained as one stack, against one after the other by a plain PyTorch loop."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.gaussian_process import GaussianProcessData
from paper_repro.datamodules.listops import ListOps, ListOpsData
from paper_repro.lightning_modules.cem_gaussian_process import CEMGaussianProcess
from paper_repro.lightning_modules.nrgpt_listops import NRGPTListOps
from paper_repro.models.cem import CEMMLP, GaussianProcessRegressor
from paper_repro.models.common import CausalLanguageModel
from paper_repro.models.gpt import RGPTParallel
from paper_repro.models.nrgpt import NRGPT_H_FF1, NRGPT_H_FF2W
from paper_repro.scripts.side_by_side import ROUNDS, Comparison, relative_error, timed
from paper_repro.training.ensemble import Ensemble
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Cosine
from paper_repro.training.tensors import place

EXPRESSIONS = ListOps(modulus=10, num_train=1_000, num_test=10)
"""A sample small enough to be drawn for each model; batches lie in memory then."""
WINDOW, RECURRENCES = 128, 5
LISTOPS: tuple[Callable[..., CausalLanguageModel], ...] = (RGPTParallel, NRGPT_H_FF1, NRGPT_H_FF2W)


def ensemble(device: torch.device) -> Iterator[Comparison]:
    """Compare models of CEM's Table 3, then models of NRGPT's figure 3."""
    cpu = device.type == "cpu"
    for models, batch_size, goal in [(16, 32, 3.0), (10, 200, None)] if cpu else [(16, 32, None), (128, 32, 50.0)]:
        for inner_steps in (1, 2, 8):
            case = f"{models} models, T={inner_steps}, batch {batch_size}"
            data = [GaussianProcessData(batch_size=batch_size, num_features=64, seed=seed) for seed in range(models)]
            yield _trained(case, functools.partial(_regressor, inner_steps), data, 20, goal, device)
    sizes = [(16, 8, 1, None), (16, 8, 4, None), (32, 8, 16, 2.0), (64, 3, 64, 2.0)] if cpu else [(64, 16, 64, 30.0)]
    for width, models, batch_size, goal in sizes:
        for make in LISTOPS:
            case = f"ListOps, {models} {make.__name__}, D={width}, batch {batch_size}"
            windows = [ListOpsData(EXPRESSIONS, batch_size, WINDOW, seed=seed) for seed in range(models)]
            module = functools.partial(_language_model, make, width)
            yield _trained(case, module, windows, max(1, 16 // batch_size), goal, device)


def _trained(
    case: str,
    make: Callable[[], PaperModule],
    data: Sequence[CounterBasedDataModule],
    steps_per_round: int,
    goal: float | None,
    device: torch.device,
) -> Comparison:
    def seeded(seed: int) -> PaperModule:
        torch.manual_seed(mix(seed, "init"))
        return make()

    for own in data:
        own.prepare_data()
    steps = steps_per_round * (ROUNDS + 1)
    stack = Ensemble([seeded(seed) for seed in range(len(data))], data, steps, clip_norm=1.0, device=device)
    alone = [_Alone(seeded(seed).to(device), own, steps) for seed, own in enumerate(data)]

    def one_after_the_other() -> None:
        for trainer in alone:
            trainer.advance(steps_per_round)

    def stacked() -> None:
        for _ in range(steps_per_round):
            stack.advance()

    sides = "ms per model and step", stacked, one_after_the_other, "plain loop, stock AdamW"
    found = timed(case, *sides, units=len(data) * steps_per_round, error=0.0, goal=goal)
    stack.unstack()
    pairs = zip(stack.modules, (trainer.module for trainer in alone), strict=True)
    return replace(found, relative_error=max(relative_error(one.parameters(), two.parameters()) for one, two in pairs))


class _Alone:
    """The loop that one would write for one model."""

    def __init__(self, module: PaperModule, data: CounterBasedDataModule, steps: int) -> None:
        self.module, self.data, self.steps, self.step = module, data, steps, 0
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer = module.optimizer(self.trained)
        self.rate = self.optimizer.param_groups[0]["lr"]

    def advance(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.param_groups[0]["lr"] = self.rate * self.module.schedule.factor(self.step, self.steps)
            self.optimizer.zero_grad()
            self.module.loss(place(self.data.train_batch(self.step), self.module.device, None)).backward()
            nn.utils.clip_grad_norm_(self.trained, 1.0)
            self.optimizer.step()
            self.step += 1


def _regressor(inner_steps: int) -> CEMGaussianProcess:
    optimizer = functools.partial(torch.optim.AdamW, lr=0.005, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    return CEMGaussianProcess(GaussianProcessRegressor(CEMMLP(64, 170, num_steps=inner_steps)), optimizer, Cosine())


def _language_model(make: Callable[..., CausalLanguageModel], width: int) -> NRGPTListOps:
    optimizer = functools.partial(torch.optim.AdamW, lr=5e-4, weight_decay=0.01)
    model = make(len(EXPRESSIONS.vocabulary), WINDOW, width, num_heads=1, num_steps=RECURRENCES)
    return NRGPTListOps(model, optimizer, Cosine())
