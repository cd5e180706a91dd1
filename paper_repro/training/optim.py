"""Optimisers whose every step leaves matrices with rows of unit norm (nGPT, arXiv 2410.01131, section 2.6).

A parameter group with ``unit_rows: True`` holds them; the last dimension of each is the one that is normalised.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from paper_repro.kernels.unit_adam import adam_
from paper_repro.models.common import project_rows_


def keep_unit_rows(optimizer: Optimizer) -> None:
    """Project the matrices of the groups with ``unit_rows`` right after every step of ``optimizer``.

    An optimiser whose class has ``projects_unit_rows = True`` does so in its step.
    """
    kept = [parameter for group in optimizer.param_groups if group.get("unit_rows") for parameter in group["params"]]
    for parameter in kept:
        if parameter.ndim < 2:
            raise ValueError(f"a group with unit_rows holds matrices, found a parameter {tuple(parameter.shape)}")
    if not kept or getattr(optimizer, "projects_unit_rows", False):
        return

    def project(*_: Any) -> None:
        for parameter in kept:
            project_rows_(parameter)

    optimizer.register_step_post_hook(project)


class UnitAdamW(torch.optim.AdamW):
    """torch.optim.AdamW, and unit rows in the groups with ``unit_rows: True``: ``kernels.unit_adam.adam_``.

    AdamW and this load each other's state dicts.
    """

    projects_unit_rows = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
        for group in self.param_groups:
            group.setdefault("unit_rows", False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state as any optimiser does, but not which groups have unit rows: AdamW's may not know."""
        own = [group["unit_rows"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, unit_rows in zip(self.param_groups, own, strict=True):
            group["unit_rows"] = unit_rows

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for number, fours in self._by_step(group).items():
                parameters, gradients, firsts, seconds = zip(*fours, strict=True)
                options = {name: group[name] for name in ("betas", "eps", "weight_decay", "unit_rows")}
                adam_(parameters, gradients, firsts, seconds, step=number, lr=float(group["lr"]), **options)
        return loss

    def _by_step(self, group: dict[str, Any]) -> dict[float, list[tuple[Tensor, ...]]]:
        """Group parameters, gradients and moments by the number of the step that they are about to take."""
        found: dict[float, list[tuple[Tensor, ...]]] = {}
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            if state["step"].device.type != "cpu":  # of a fused AdamW: read once, never again
                state["step"] = state["step"].cpu()
            state["step"] += 1
            four = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
            found.setdefault(float(state["step"]), []).append(four)
        return found
