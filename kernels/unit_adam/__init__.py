"""The optimiser step of nGPT (arXiv 2410.01131, section 2.6): decoupled Adam, and rows that keep unit norm."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paper_repro.kernels.dispatch import Way, choose, triton_way
from paper_repro.kernels.unit_adam import reference, stock
from paper_repro.kernels.unit_adam.reference import Settings

LONGEST_ROW = 8192
"""The fused kernel holds whole rows in registers."""


@torch.no_grad()
def project_rows_(tensor: Tensor) -> Tensor:
    """Set x <- x / |x| over the last dimension, in float32 (float64 for float64), rounded to the tensor's dtype; in
    place.

    Raises:
        ValueError: fewer than two dimensions.
    """
    _check_rows(tensor)
    wide = tensor.to(reference.wide(tensor.dtype))  # (..., rows, D)
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
    """Take one step of Adam with decoupled weight decay (arXiv 1412.6980, 1711.05101) of every parameter, in place.

    p <- (1 - lr weight_decay) p;  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
    p <- p - lr m' / (sqrt(v') + eps) with m' = m / (1 - b1^step), v' = v / (1 - b2^step);
    and, with ``unit_rows``, p <- p / |p| over the last dimension.

    Computed in float32 (float64 where the parameter is), each result rounded once to the dtype it is kept in.

    Args:
        parameters, gradients, first_moments, second_moments: p, g, m, v, one of each per parameter and of its shape.
        step: the number of this step, from 1.
        implementation: "fused" (on CUDA Triton, one launch for all parameters of one width and dtype; on a CPU torch's
            own fused Adam, and then the projection), "reference" (the definition, tensor by tensor) or "auto": the
            first, and the definition for whatever that does not take.

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
    kinds = {(tensor.device, tensor.dtype): tensor for four in given for tensor in four}
    stepper = choose("unit_adam", WAYS, implementation, list(kinds.values()) or [torch.empty(0)])
    taken: list[reference.Four] = []
    others: list[reference.Four] = []
    for four in given:
        (taken if stepper.takes(four, unit_rows) else others).append(four)
    if others and implementation == "fused":
        raise ValueError(
            f"unit_adam: implementation='fused' needs {stepper.needs}, got {others[0][0].dtype} "
            f"{tuple(others[0][0].shape)}; use implementation='auto' or 'reference'"
        )
    if taken:
        stepper.step(taken, settings, unit_rows)  # four tensors (..., D) of one shape each
    for four in others:
        reference.adam_(four, settings, unit_rows)


class Stepper(NamedTuple):
    """What steps, of which parameters, and what these need for it."""

    takes: Callable[[reference.Four, bool], bool]
    step: Callable[[Sequence[reference.Four], Settings, bool], None]
    needs: str


def _by_kernel(given: Sequence[reference.Four], settings: Settings, unit_rows: bool) -> None:
    from paper_repro.kernels.unit_adam import fused

    fused.adam_(given, settings, unit_rows)


def _simple(four: reference.Four, unit_rows: bool) -> bool:
    plain = all(type(tensor) in (Tensor, nn.Parameter) and tensor.is_contiguous() for tensor in four)
    return plain and (not unit_rows or four[0].shape[-1] <= LONGEST_ROW)


def _by_definition(given: Sequence[reference.Four], settings: Settings, unit_rows: bool) -> None:
    for four in given:
        reference.adam_(four, settings, unit_rows)


WAYS = (
    triton_way(
        Stepper(_simple, _by_kernel, f"contiguous tensors and rows of at most {LONGEST_ROW}"),
        order=0,
    ),
    Way(
        "fused",
        Stepper(stock.takes, stock.adam_, "contiguous tensors of one dtype, float32 or float64"),
        order=0,
        devices=("cpu",),
    ),
    Way("reference", Stepper(lambda _four, _unit_rows: True, _by_definition, "nothing")),
)


def _check_four(four: reference.Four, unit_rows: bool) -> None:
    if len({tensor.shape for tensor in four}) > 1:
        found = ", ".join(str(tuple(tensor.shape)) for tensor in four)
        raise ValueError(f"parameter, gradient and moments must have one shape, got {found}")
    if unit_rows:
        _check_rows(four[0])


def _check_rows(tensor: Tensor) -> None:
    if tensor.ndim < 2:
        raise ValueError(f"unit rows need a matrix (..., rows, D), got {tuple(tensor.shape)}")
