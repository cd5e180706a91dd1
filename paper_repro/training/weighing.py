"""The weight of each batch of an optimiser step: the number of its targets that count."""

from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer


class TargetWeights:
    """Makes a step's gradient that of the mean over all targets that count, in all of its batches on all devices.

    Lightning takes the mean over batches of their losses.  Each loss is therefore multiplied by its number of targets
    over that of the step's first batch (the largest one of all devices), and the gradients, before they are clipped, by
    ``correction``, which makes the mean weight 1.  Where all numbers are equal both are exactly 1.
    """

    def __init__(self) -> None:
        self.correction = 1.0
        """What the last step's gradients were multiplied by, and its mean of weighted losses has to be."""
        self._targets: list[Tensor] = []
        self._unit = torch.ones(())

    def weight(self, targets: Tensor, trainer: L.Trainer, first: bool) -> Tensor | None:
        """Return the weight of a batch's loss, float64, (), from its number of targets; None: it is the only one.

        Args:
            first: whether the batch is the first one of its step.
        """
        if first:
            self._targets.clear()
        self._targets.append(targets)
        if _batches(trainer) == 1:
            return None
        if first:
            self._unit = _over_devices(trainer, targets, dist.ReduceOp.MAX).clamp(min=1)
        return targets.double() / self._unit

    def correct(self, optimizer: Optimizer, trainer: L.Trainer) -> None:
        """Multiply the gradients of a step, which are those of the mean of its weighted losses, by ``correction``."""
        self.correction = 1.0
        if not self._targets:
            return
        total = torch.stack(self._targets).sum()
        self._targets.clear()
        if _batches(trainer) > 1:
            total = _over_devices(trainer, total, dist.ReduceOp.SUM)
            self.correction = float(_batches(trainer) * self._unit.double() / total.clamp(min=1))
        if self.correction != 1:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(self.correction)


def _batches(trainer: L.Trainer) -> int:
    return trainer.accumulate_grad_batches * trainer.world_size


def _over_devices(trainer: L.Trainer, count: Tensor, operation: Any) -> Tensor:
    if trainer.world_size == 1:
        return count
    found = count.clone()
    dist.all_reduce(found, operation)
    return found
