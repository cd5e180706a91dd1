"""A mean over everything that was ever seen: a float64 sum and an integer count, added across batches and processes."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric


class PooledMean(Metric):
    """What a subclass adds batch by batch, divided by what it counts; the metric is computed from that mean.

    The sum stays float64 when the module that owns the metric is moved to another precision (``.half()``,
    ``.to(torch.bfloat16)``, Lightning's "bf16-true"); only ``set_dtype`` changes it.
    """

    is_differentiable = True
    full_state_update = False
    counted: ClassVar[str] = "elements"

    pooled_sum: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("pooled_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _add(self, batch_sum: Tensor, batch_count: Tensor | int) -> None:
        self.pooled_sum = self.pooled_sum + batch_sum
        self.count = self.count + batch_count

    def _mean(self) -> Tensor:
        if self.count == 0:
            raise ValueError(f"{type(self).__name__} has seen no {self.counted}: call update before compute")
        return self.pooled_sum / self.count

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> torch.nn.Module:
        if self._dtype_convert:
            return super()._apply(fn, exclude_state)
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), exclude_state)
