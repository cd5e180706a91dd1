"""Errors of regression, pooled over every element that was ever seen."""

from typing import ClassVar

import torch
from torch import Tensor

from paper_repro.metrics import quantities
from paper_repro.metrics.pooled import PooledMean
from paper_repro.metrics.quantities import Quantity


def squared_error(preds: Tensor, target: Tensor) -> Tensor:
    """Return ``(preds - target)^2`` in float64, element by element; the shape of both.

    Raises:
        ValueError: the shapes differ (nothing is broadcast), or there is no element.
        TypeError: complex tensors.
    """
    if preds.shape != target.shape:
        raise ValueError(
            f"preds have shape {tuple(preds.shape)}, target has {tuple(target.shape)}: give two tensors of one shape, "
            "nothing is broadcast"
        )
    if preds.numel() == 0:
        raise ValueError(f"preds and target are empty, shape {tuple(preds.shape)}: leave the empty batch out")
    if preds.is_complex() or target.is_complex():
        raise TypeError(f"found {preds.dtype} and {target.dtype}, expected real tensors: give real and imaginary parts")
    return (preds.to(torch.float64) - target.to(torch.float64)).square()


class MeanSquaredError(PooledMean):
    """Mean of ``(preds - target)^2`` over all elements of all batches: batches weigh by their size.

    Shape: preds and target the same, any.  Unit: that of the target, squared.

    Raises:
        TypeError: complex tensors.
        ValueError: shapes that differ, an empty batch, or ``compute`` before any ``update``.
    """

    quantity: ClassVar[Quantity] = quantities.MSE
    higher_is_better = quantity.higher_is_better

    def update(self, preds: Tensor, target: Tensor) -> None:
        self._add(squared_error(preds, target).sum(), target.numel())

    def compute(self) -> Tensor:
        return self._mean()


class RootMeanSquaredError(MeanSquaredError):
    """``sqrt`` of the pooled mean squared error; never a mean of per-batch roots (CEM, Table 3).

    Unit: that of the target.  Shape and errors as for ``MeanSquaredError``.
    """

    quantity: ClassVar[Quantity] = quantities.RMSE
    higher_is_better = quantity.higher_is_better

    def compute(self) -> Tensor:
        return self._mean().sqrt()
