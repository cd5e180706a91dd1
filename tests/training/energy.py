"""A small energy model whose training needs all that a step offers: draws, a carry, a double backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torchmetrics import Metric

from paper_repro.metrics.pooled import RootMeanSquaredError
from paper_repro.models.descent import StepRule, descend
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Exponential
from paper_repro.training.tensors import Distribution, Integers, Normal, Uniform, add, choose, empty_ring

MOST_STEPS = 4
CAPACITY, REPLAYED = 12, 4
NOISE = 0.1


def gradient_step(energy: Callable[[Any], Tensor], step_size: Any) -> StepRule[Any]:
    """Return the rule x <- x - step_size dE/dx, for a tree of tensors."""

    def step(state: Any, index: int) -> Any:
        gradient = torch.func.grad(lambda at: energy(at).sum())(state)
        return tree_map(lambda x, g: x - step_size * g, state, gradient)

    return step


class Energy(nn.Module):
    """E(x, y) = y^2 / 2 + v tanh(W [x, y] + b), and the step size with which it is descended."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(11, hidden), nn.Linear(hidden, 1, bias=False)
        self.step_size = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(torch.cat([x, y[:, None]], -1)))  # (B, H)
        return y.square() / 2 + self.last(hidden).squeeze(-1)  # (B,)


class EnergyRegression(PaperModule):
    """Mean squared error of where 1 to 4 Langevin steps lead, from noise or from an earlier prediction.

    The step size has a rate and a schedule of its own.
    """

    model: Energy

    def random_tensors(self, batch: Any) -> dict[str, Distribution]:
        rows = len(batch[1])
        return {
            "start": Normal((rows,)),
            "noise": Normal((MOST_STEPS, rows + REPLAYED)),
            "keys": Uniform((CAPACITY,)),
            "num_steps": Integers(1, MOST_STEPS),
        }

    def initial_carry(self, batch: Any) -> Any:
        x, targets = batch
        return empty_ring(CAPACITY, {"x": x, "target": targets, "y": targets})

    def loss_and_carry(self, batch: Any, draws: dict[str, Tensor], carry: Any) -> tuple[Tensor, Any]:
        fresh, targets = batch  # (B, 10), (B,)
        old, there = choose(carry, draws["keys"], REPLAYED, fresh.dtype)
        x, wanted = torch.cat([fresh, old["x"]]), torch.cat([targets, old["target"]])
        start = torch.cat([draws["start"], old["y"]])
        rule = gradient_step(lambda y: self.model(x, y), self.model.step_size)

        def step(y: Tensor, index: int) -> Tensor:
            return torch.where(index < draws["num_steps"], rule(y, index) + NOISE * draws["noise"][index], y)

        found = descend(step, start, MOST_STEPS).state
        weights = torch.cat([torch.ones_like(targets), there.to(targets.dtype)])
        loss = (weights * (found - wanted).square()).sum() / weights.sum()
        return loss, add(carry, {"x": fresh, "target": targets, "y": found[: len(targets)]})

    def parameter_groups(self) -> list[dict[str, Any]]:
        others = [parameter for name, parameter in self.named_parameters() if not name.endswith("step_size")]
        own = {"lr": 0.05, "weight_decay": 0.0, "schedule": Exponential(final_factor=0.1)}
        return [{"params": others}, {"params": [self.model.step_size], **own}]

    def new_metrics(self) -> dict[str, Metric]:
        return {"rmse": RootMeanSquaredError()}

    def update_metrics(self, metrics: dict[str, Metric], batch: Any) -> None:
        x, targets = batch
        rule = gradient_step(lambda y: self.model(x, y), self.model.step_size)
        metrics["rmse"].update(descend(rule, torch.zeros_like(targets), MOST_STEPS).state, targets)
