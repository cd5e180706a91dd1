"""Cross entropy of scaled linear logits (nGPT, equation 3) that never holds all logits.

The logits z of some tokens become p - onehot(target) in their own buffer and are multiplied out at once: three matrix
products in all, as in the definition, and nothing of the size of all logits is kept.

Legend: N tokens, n tokens of a chunk, D width, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from paper_repro.kernels.dispatch import (
    ANY_FLOATS,
    Shapes,
    Way,
    choose,
    closed_form_way,
    device_type,
    triton_way,
    under_autocast,
)
from paper_repro.kernels.first_order import FirstOrder, WithGradient
from paper_repro.models import common

IGNORED = -100
"""A target that does not count."""
SMALL, LEAST_WORDS = 1 << 20, 256
"""With fewer logits (4 MiB in float32) or words "auto" takes the definition on a CPU: the calls would take longer."""
PIECE, LEAST_ROWS = 1 << 18, 4
"""Entries per thread of the rows whose softmax is computed at once on a CPU: 1 MB of float32 stays in its cache."""
ALIGNMENT = 64
"""Rows of the buffer of logits start at multiples of so many entries, which matrix products and loads want."""
SHAPES = Shapes(h="... D", weight="V D", targets="...", scale="V|1")

Softmax = Callable[[Tensor, Tensor, bool], Tensor]
"""Computes the losses (n,) of logits (n, V), see ``softmax``: by PyTorch there, by Triton in ``triton``."""


def linear_cross_entropy(
    h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None = None, implementation: str = "auto"
) -> Tensor:
    """Compute the mean of logsumexp(z) - z_target with z_v = scale_v (weight_v . h) (nGPT, equation 3), over all
    targets but ``IGNORED``; nan where there is none.

    "closed_form" and "fused" (its softmax by Triton) hold some tokens' logits at a time and have first derivatives in
    reverse mode only, computed in the forward pass.  "auto" is fused on CUDA and the closed form on a CPU from
    ``SMALL`` logits on.

    The logits have the dtype of ``h`` and ``weight``, or autocast's; the softmax and the gradients' sums over chunks
    are float32 at least.  Scale and weight are multiplied first: in half precision their product is rounded.

    Args:
        h: (..., D).
        weight: (V, D).
        targets: (...) int64.  On CUDA their range is not checked, which would wait for the device: one beyond it makes
            the loss nan.
        scale: (V,) or (1,); None is 1.

    Returns:
        (), float32 or float64.
    """
    softmax = _softmax(implementation, h, weight, targets, scale)
    if softmax is None:
        return common.linear_cross_entropy(h, weight, targets, scale)
    graded = torch.is_grad_enabled()
    wanted = tuple(graded and value is not None and value.requires_grad for value in (h, weight, scale))
    arguments = _prepared(h, weight, targets, scale)
    with torch.autocast(h.device.type, enabled=False):
        loss, *_ = LinearCrossEntropy.apply(*arguments, softmax, wanted)
    return loss


@torch.no_grad()
def negative_log_likelihoods(
    h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None = None, implementation: str = "auto"
) -> Tensor:
    """Compute logsumexp(z) - z_target of each token, (...), as ``linear_cross_entropy``; without gradients, 0 where the
    target is ``IGNORED``.
    """
    softmax = _softmax(implementation, h, weight, targets, scale)
    if softmax is None:
        return common.negative_log_likelihoods(h, weight, targets, scale)
    arguments = _prepared(h, weight, targets, scale)
    with torch.autocast(h.device.type, enabled=False):
        losses, *_ = _compute(*arguments, softmax, (False,) * 3)
    return losses.reshape(targets.shape)  # (N,) -> (...,)


def chunk_size(tokens: int, vocabulary: int, on_cpu: bool) -> int:
    """Choose the tokens of a chunk: an eighth, well below a quarter of what the definition holds, within limits.

    On a CPU 256 tokens keep the matrix products near their best rate, on a GPU some thousand.
    """
    least, most, logits = (256, 512, 1 << 26) if on_cpu else (1024, 4096, 1 << 28)
    return min(tokens, max(least, min(most, tokens // 8, logits // vocabulary)))


class LinearCrossEntropyGradient(FirstOrder):
    """The gradients of h, weight, targets (None) and scale: those of the losses' sum times the mean's gradient."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        gradient, h, weight, _, scale, dh, dweight, dscale, count, *_ = given
        factor = gradient / count.clamp(min=1)

        def scaled(summed: Tensor | None, like: Tensor | None) -> Tensor | None:
            if summed is None or like is None:
                return None
            return torch.mul(summed, factor, out=torch.empty_like(summed, dtype=like.dtype))

        return scaled(dh, h), scaled(dweight, weight), None, scaled(dscale, scale)


class LinearCrossEntropy(WithGradient):
    """h (N, D), weight (V, D), targets (N), scale (V) or None, then options of ``_compute``: the mean loss.

    Also the gradients of the sum: of h (N, D), weight (V, D) and scale (V), float32 at least, None if not wanted; and
    how many targets count.
    """

    gradient = LinearCrossEntropyGradient

    @staticmethod
    def forward(*given: Any) -> Any:
        losses, *gradients = _compute(*given)
        count = (given[2] != IGNORED).sum()
        return losses.sum() / count, *gradients, count


def _compute(
    h: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor | None,
    dtype: torch.dtype,
    softmax: Softmax,
    wanted: tuple[bool, ...],
) -> tuple[Any, ...]:
    """Return the losses (N), and the gradients of h, weight and scale that are ``wanted``; products in ``dtype``."""
    folded = (weight if scale is None else weight * scale.unsqueeze(1)).to(dtype)  # (V, D)
    inputs = h.to(dtype)
    exact = torch.promote_types(dtype, torch.float32)
    wants_h, wants_weight, wants_scale = wanted
    dh = torch.zeros_like(h, dtype=exact) if wants_h else None  # (N, D)
    dfolded = torch.zeros_like(weight, dtype=exact) if wants_weight or wants_scale else None  # (V, D)
    tokens, words = chunk_size(len(h), len(weight), device_type(h) == "cpu"), len(weight)
    buffer = inputs.new_empty(min(tokens, len(h)), -(-words // ALIGNMENT) * ALIGNMENT)
    losses = h.new_empty(len(h), dtype=exact)  # (N,)
    for start in range(0, len(h), tokens):
        chunk = slice(start, start + tokens)
        rows = inputs[chunk]  # (n, D)
        z = torch.mm(rows, folded.mT, out=buffer[: len(rows), :words])  # (n, V)
        losses[chunk] = softmax(z, targets[chunk], any(wanted))
        if dh is not None:
            add_product(dh[chunk], z, folded)
        if dfolded is not None:
            add_product(dfolded, z.mT, rows)
    if dfolded is None or scale is None:
        return losses, dh, dfolded, None
    dscale = (dfolded * weight).sum(1) if wants_scale else None  # (V,)
    return losses, dh, dfolded.mul_(scale.unsqueeze(1)) if wants_weight else None, dscale


def softmax(z: Tensor, targets: Tensor, gradient: bool) -> Tensor:
    """Return the losses (n,) of logits z (n, V), 0 where the target does not count, nan where no word is the target.

    z is overwritten: with ``gradient`` by p - onehot(target), 0 in rows that do not count.
    """
    counted = (targets != IGNORED).unsqueeze(1)  # (n, 1)
    column = targets.unsqueeze(1).clamp(0, z.shape[1] - 1)  # (n, 1)
    here = counted & (column == targets.unsqueeze(1))
    exact = torch.promote_types(z.dtype, torch.float32)
    at_target = torch.where(here, z.gather(1, column).to(exact), torch.nan)  # (n, 1)
    largest, total = torch.empty_like(at_target), torch.empty_like(at_target)
    on_cpu = device_type(z) == "cpu"
    size = max(LEAST_ROWS, PIECE * torch.get_num_threads() // z.shape[1]) if on_cpu else len(z)
    for block, counts, top, norm in zip(*(rows.split(size) for rows in (z, counted, largest, total)), strict=True):
        values = block.to(exact)
        torch.amax(values, 1, keepdim=True, out=top)
        torch.sum(values.sub_(top).exp_(), 1, keepdim=True, out=norm)
        if gradient:
            values.mul_(counts / norm)
            if values is not block:
                block.copy_(values)
    if gradient:
        wrong = torch.expm1(at_target - largest - total.log())
        z.scatter_(1, column, torch.where(here, wrong.to(z.dtype), z.gather(1, column)))
    return torch.where(counted, largest + total.log() - at_target, 0).squeeze(1)


def add_product(into: Tensor, one: Tensor, two: Tensor) -> None:
    """Compute into += one two; a product of half precision is added in the precision of ``into``.

    On CUDA nothing is rounded in between, on a CPU each product is, to the dtype of its factors.
    """
    if into.dtype == one.dtype:
        torch.addmm(into, one, two, out=into)
    elif one.is_cuda and _adds_into_float32():
        torch.addmm(into, one, two, out_dtype=into.dtype, out=into)
    elif one.is_cuda:
        into.add_(torch.mm(one, two, out_dtype=into.dtype))
    else:
        into.add_(torch.mm(one, two))


@functools.cache
def _adds_into_float32() -> bool:
    """Return whether addmm takes a float32 sum and half-precision factors, as not every PyTorch with ``out_dtype``."""
    total = torch.zeros(16, 16, device="cuda")
    factor = total.bfloat16()
    try:
        torch.addmm(total, factor, factor, out_dtype=total.dtype, out=total)
    except RuntimeError:
        return False
    return True


def _fused() -> Softmax:
    from paper_repro.kernels.linear_ce import triton

    return triton.softmax


WAYS: tuple[Way[Callable[[], Softmax | None]], ...] = (
    triton_way(_fused),
    closed_form_way(lambda: softmax, order=1, **ANY_FLOATS, auto_large=True),
    Way("reference", lambda: None),
)


def _softmax(implementation: str, h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None) -> Softmax | None:
    """Check the arguments and return the softmax of a chunk of logits; None for the definition."""
    SHAPES.check(h, weight, targets, scale)
    if h.dtype != weight.dtype and (torch.float64 in (h.dtype, weight.dtype) or _autocast_dtype(h) is None):
        raise ValueError(f"h and weight must have one dtype outside autocast, got {h.dtype} and {weight.dtype}")
    if targets.dtype != torch.int64:
        raise ValueError(f"targets must be int64, got {targets.dtype}")
    if device_type(targets) == "cpu" and peek_interpreter_stack() is None and not torch.compiler.is_compiling():
        wrong = targets[(targets != IGNORED) & ((targets < 0) | (targets >= weight.shape[0]))]
        if wrong.numel():
            raise ValueError(
                f"{wrong.numel()} of {targets.numel()} targets are neither in [0, {weight.shape[0]}) nor "
                f"{IGNORED}, one of them {int(wrong[0])}"
            )
    given = [h, weight] if scale is None else [h, weight, scale]
    words, device = weight.shape[0], device_type(h)
    few = words < LEAST_WORDS or targets.numel() * words < SMALL
    large = device != "meta" and not (few and device == "cpu")
    return choose("linear_cross_entropy", WAYS, implementation, given, large=large)()


def _prepared(
    h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, torch.dtype]:
    """Return h (N, D), weight, targets (N), scale (V) or None, and the dtype of the products."""
    full = None if scale is None else scale.expand(weight.shape[0])  # (V,)
    return h.reshape(-1, h.shape[-1]), weight, targets.reshape(-1).contiguous(), full, _autocast_dtype(h) or h.dtype


def _autocast_dtype(h: Tensor) -> torch.dtype | None:
    """Return what autocast, if active, makes of the factors of a matrix product; it leaves float64 alone."""
    if h.dtype == torch.float64 or not under_autocast(h):
        return None
    return torch.get_autocast_dtype(h.device.type)
