"""On a CPU: torch's own fused Adam on all tensors at once, then two passes over the matrices that keep unit rows.

Block by block, so that a projection finds its rows in the cache, takes longer: calls cost more than the memory does.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from paper_repro.kernels.unit_adam.reference import Four, Settings


def takes(four: Four, unit_rows: bool) -> bool:
    """Return whether torch's kernel computes the same from parameter, gradient and moments, with rows of any length."""
    dtypes = {tensor.dtype for tensor in four}
    plain = all(type(tensor) in (Tensor, nn.Parameter) and tensor.is_contiguous() for tensor in four)
    return plain and dtypes in ({torch.float32}, {torch.float64}) and four[0].device.type == "cpu"


def adam_(given: Sequence[Four], settings: Settings, unit_rows: bool) -> None:
    """See ``kernels.unit_adam.adam_``; every tensor is one that ``takes`` accepts."""
    parameters, gradients, firsts, seconds = (list(tensors) for tensors in zip(*given, strict=True))
    steps = torch.full((len(parameters),), settings.step - 1.0)
    adamw(
        parameters,
        gradients,
        firsts,
        seconds,
        [],
        list(steps.unbind()),
        fused=True,
        lr=settings.lr,
        beta1=settings.beta1,
        beta2=settings.beta2,
        weight_decay=settings.weight_decay,
        eps=settings.eps,
        amsgrad=False,
        maximize=False,
    )
    if unit_rows:
        for parameter in parameters:
            # One reciprocal per row: a division of every number takes twice as long.
            parameter.mul_(torch.linalg.vector_norm(parameter, dim=-1, keepdim=True).reciprocal_())
