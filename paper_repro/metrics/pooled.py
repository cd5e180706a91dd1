"""A mean over everything that was ever seen: a float64 sum and an integer count, added across batches and processes.

torchmetrics' own means leave NaN out, so that a model which diverged looks as good as its other batches.  Here NaN and
inf pass into the result.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from paper_repro.base.errors import at_least


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


class Mean(PooledMean):
    """Mean of numbers that are given batch by batch, with a weight for each or 1.  NaN and inf pass through.

    Shape: a tensor of any shape, all of whose elements weigh the same.

    Raises:
        ValueError: no number in an update, a weight below 1, or ``compute`` before any ``update``.
    """

    higher_is_better = None
    counted = "numbers"

    def update(self, values: Tensor, weight: int = 1) -> None:
        if not values.numel():
            raise ValueError(f"no number in this update, shape {tuple(values.shape)}: leave the empty batch out")
        total = values.detach().to(torch.float64).sum()
        self._add(total * at_least("weight", weight), values.numel() * weight)

    def compute(self) -> Tensor:
        return self._mean()


class Largest(Metric):
    """The largest of all numbers that were given; NaN if one of them is NaN, inf if one is.

    Shape: a tensor of any shape.

    Raises:
        ValueError: no number in an update, or ``compute`` before any ``update``.
    """

    is_differentiable = True
    higher_is_better = None
    full_state_update = False

    largest: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("largest", torch.tensor(-torch.inf, dtype=torch.float64), dist_reduce_fx="max")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, values: Tensor) -> None:
        if not values.numel():
            raise ValueError(f"no number in this update, shape {tuple(values.shape)}: leave the empty batch out")
        self.largest = torch.maximum(self.largest, values.detach().max().to(torch.float64))
        self.count = self.count + values.numel()

    def compute(self) -> Tensor:
        if self.count == 0:
            raise ValueError(f"{type(self).__name__} has seen no numbers: call update before compute")
        return self.largest
