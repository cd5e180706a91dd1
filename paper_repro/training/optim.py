"""Optimisers whose every step leaves matrices with rows of unit norm (nGPT, arXiv 2410.01131, section 2.6).

A parameter group with ``unit_rows: True`` holds them; the last dimension of each is the one that is normalised.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from paper_repro.models.common import project_rows_


def keep_unit_rows(optimizer: Optimizer) -> None:
    """Project the matrices of the groups with ``unit_rows`` right after every step of ``optimizer``."""
    kept = [parameter for group in optimizer.param_groups if group.get("unit_rows") for parameter in group["params"]]
    for parameter in kept:
        if parameter.ndim < 2:
            raise ValueError(f"a group with unit_rows holds matrices, found a parameter {tuple(parameter.shape)}")
    if not kept:
        return

    def project(*_: Any) -> None:
        for parameter in kept:
            project_rows_(parameter)

    optimizer.register_step_post_hook(project)


class UnitAdamW(torch.optim.AdamW):
    """torch's fused AdamW, for groups with and without ``unit_rows``; AdamW and this load each other's state dicts."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, fused=True)
