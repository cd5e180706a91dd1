"""The optimiser step of nGPT (arXiv 2410.01131, section 2.6): decoupled Adam, and rows that keep unit norm."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paper_repro.kernels.dispatch import use_fused
from paper_repro.kernels.unit_adam import reference, stock
from paper_repro.kernels.unit_adam.reference import Settings

LONGEST_ROW = 8192
"""The fused kernel holds whole rows in registers."""


@torch.no_grad()
def project_rows_(tensor: Tensor) -> Tensor:
    """x <- x / |x| over the last dimension, in float32 (float64 for float64), rounded to the tensor's dtype; in place.

    Raises:
        ValueError: fewer than two dimensions.
    """
    _check_rows(tensor)
    wide = tensor.to(reference.wide(tensor.dtype))
    reference.unit_(wide)
    return tensor if wide is tensor else tensor.copy_(wide)


@torch.no_grad()
def adam_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    step: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    unit_rows: bool,
    implementation: str = "auto",
) -> None:
    """One step of Adam with decoupled weight decay (arXiv 1412.6980, 1711.05101) of every parameter, in place.

    p <- (1 - lr weight_decay) p;  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
    p <- p - lr m' / (sqrt(v') + eps) with m' = m / (1 - b1^step), v' = v / (1 - b2^step);
    and, with ``unit_rows``, p <- p / |p| over the last dimension.

    Computed in float32 (float64 where the parameter is), each result rounded once to the dtype it is kept in.

    Args:
        parameters, gradients, first_moments, second_moments: p, g, m, v, one of each per parameter and of its shape.
        step: the number of this step, from 1.
        implementation: "fused" (Triton, one launch for all parameters of one width and dtype), "reference" (the
            definition, tensor by tensor) or "auto": the first on CUDA, on a CPU torch's own fused Adam and then the
            projection, and the definition for whatever these do not take.

    Raises:
        ValueError: shapes that differ, a vector with ``unit_rows``, a step below 1, an unknown implementation, or a
            fused kernel that is not possible.
    """
    settings = Settings(step, lr, *betas, eps, weight_decay)
    if step < 1:
        raise ValueError(f"step must be 1 or more, got {step}")
    given = list(zip(parameters, gradients, first_moments, second_moments, strict=True))
    for four in given:
        _check_four(four, unit_rows)
    given = [four for four in given if four[0].numel()]
    fused = _fused(given, unit_rows, implementation)
    by_kernel: list[reference.Four] = []
    by_definition: list[reference.Four] = []
    for four in given:
        taken = _simple(four, unit_rows) if fused else implementation == "auto" and stock.takes(four)
        (by_kernel if taken else by_definition).append(four)
    if by_definition and implementation == "fused":
        raise ValueError(
            f"unit_adam: implementation='fused' needs contiguous tensors and rows of at most {LONGEST_ROW}, got "
            f"{tuple(by_definition[0][0].shape)}; use implementation='auto' or 'reference'"
        )
    if by_kernel and fused:
        from paper_repro.kernels.unit_adam import fused as kernel

        kernel.adam_(by_kernel, settings, unit_rows)
    elif by_kernel:
        stock.adam_(by_kernel, settings, unit_rows)
    for four in by_definition:
        reference.adam_(four, settings, unit_rows)


def _check_four(four: reference.Four, unit_rows: bool) -> None:
    if len({tensor.shape for tensor in four}) > 1:
        found = ", ".join(str(tuple(tensor.shape)) for tensor in four)
        raise ValueError(f"parameter, gradient and moments must have one shape, got {found}")
    if unit_rows:
        _check_rows(four[0])


def _check_rows(tensor: Tensor) -> None:
    if tensor.ndim < 2:
        raise ValueError(f"unit rows need a matrix (..., rows, D), got {tuple(tensor.shape)}")


def _fused(given: Sequence[reference.Four], unit_rows: bool, implementation: str) -> bool:
    kinds = {(tensor.device, tensor.dtype): tensor for four in given for tensor in four}
    return use_fused("unit_adam", implementation, *(kinds.values() or [torch.empty(0)]))


def _simple(four: reference.Four, unit_rows: bool) -> bool:
    plain = all(type(tensor) in (Tensor, nn.Parameter) and tensor.is_contiguous() for tensor in four)
    return plain and (not unit_rows or four[0].shape[-1] <= LONGEST_ROW)
