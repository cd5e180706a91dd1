"""Matrices that every optimiser step leaves with rows of unit norm (nGPT, arXiv 2410.01131, section 2.6).

A parameter group with ``unit_rows: True`` holds them; the last dimension of each is the one that is normalised.
"""

from typing import Any

from torch.optim import Optimizer

from paper_repro.models.common import project_rows_


def keep_unit_rows(optimizer: Optimizer) -> None:
    """Project the parameters of the groups with ``unit_rows`` right after every step of ``optimizer``.

    Nothing is added to an optimiser whose class has ``projects_unit_rows = True``, for it does so in its step.  What is
    projected is settled here: a state dict without the key, loaded later, changes nothing.

    Raises:
        ValueError: such a parameter has fewer than two dimensions.
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
