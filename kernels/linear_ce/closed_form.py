"""Cross entropy of scaled linear logits over pieces of them; the gradients are computed in the forward pass.

A piece of logits z becomes p - onehot(target) in its own buffer and is multiplied out at once: three matrix products
in all, as in the definition, and nothing of the size of the logits is kept.  Where the vocabulary is cut too, a first
pass over its pieces finds the normaliser, and the logits are computed again for the gradient: one product more.

Legend: N tokens, n tokens of a chunk, D width, V vocabulary, v words of a piece.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paper_repro.kernels.first_order import FirstOrder

PIECE, LEAST_ROWS = 1 << 18, 4
"""Entries per thread of the rows whose softmax is computed at once on a CPU: 1 MB of float32 stays in its cache."""
ALIGNMENT = 64
"""Rows of the buffer of logits start at multiples of so many entries, which matrix products and loads want."""

Piece = Callable[[Tensor, "Rows", int, bool, bool], None]
"""What computes on logits (n, v) in place, see ``softmax_piece``: by PyTorch there, by Triton in ``fused``."""


class Options(NamedTuple):
    """How ``LinearCrossEntropy`` computes; ``wanted`` says whether h, weight and scale need gradients."""

    ignore_index: int
    token_chunk: int
    vocabulary_chunk: int
    dtype: torch.dtype
    piece: Piece
    wanted: tuple[bool, bool, bool]


class Rows(NamedTuple):
    """Targets (n, 1) int64, which of them count (n, 1), and what is known of each row of logits, (n, 1) each: the
    largest, the sum of exp(z - largest), and the target's logit, which stays nan where no word is the target."""

    targets: Tensor
    counted: Tensor
    largest: Tensor
    total: Tensor
    at_target: Tensor

    def split(self, rows: int) -> Iterator["Rows"]:
        return (Rows(*block) for block in zip(*(value.split(rows) for value in self), strict=True))

    def losses(self) -> Tensor:
        """Compute logsumexp(z) - z_target, 0 where the target does not count."""
        found = self.largest + self.total.log() - self.at_target
        return torch.where(self.counted, found, 0).squeeze(1)


class LinearCrossEntropy(FirstOrder):
    """h (N, D), weight (V, D), targets (N), scale (V) or None: the losses' sum over ``divisor``, None for 1.

    Also the gradients of the sum: of h (N, D), weight (V, D) and scale (V), float32 at least, None if not wanted.
    """

    @staticmethod
    def forward(
        h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None, divisor: Tensor | None, options: Options
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        losses, *gradients = _compute(h, weight, targets, scale, options)
        total = losses.sum()
        return (total if divisor is None else total / divisor), *gradients  # type: ignore[return-value]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        h, weight, _, scale, divisor, _ = inputs
        ctx.mark_non_differentiable(*(gradient for gradient in output[1:] if gradient is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h, weight, scale, divisor, *output[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if gradients[0] is None:
            return (None,) * 6
        dh, dweight, dscale = LinearCrossEntropyGradient.apply(gradients[0], *ctx.saved_tensors)
        return dh, dweight, None, dscale, None, None


class LinearCrossEntropyGradient(FirstOrder):
    """The gradients of h, weight and scale times that of the loss, over the divisor.

    h, weight and scale are arguments so that the results depend on them: a second derivative is refused, not lost.
    """

    @staticmethod
    def forward(gradient: Tensor, *saved: Tensor | None) -> tuple[Tensor | None, ...]:
        factor = gradient if saved[3] is None else gradient / saved[3].clamp(min=1)
        return tuple(
            None
            if value is None or at is None
            else torch.mul(value, factor, out=torch.empty_like(value, dtype=at.dtype))
            for value, at in zip(saved[4:], saved[:3], strict=True)
        )


def negative_log_likelihoods(
    h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None, options: Options
) -> Tensor:
    """Compute the losses (N) of h (N, D), weight (V, D), targets (N), scale (V) or None."""
    return _compute(h, weight, targets, scale, options)[0]


def _compute(
    h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None, options: Options
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the losses (N), and the gradients of h, weight and scale: of the folded matrix scale * weight first."""
    folded = (weight if scale is None else weight * scale.unsqueeze(1)).to(options.dtype)  # (V, D)
    inputs = h.to(options.dtype)
    exact = torch.promote_types(options.dtype, torch.float32)
    wants_h, wants_weight, wants_scale = options.wanted
    dh = torch.zeros_like(h, dtype=exact) if wants_h else None  # (N, D)
    dfolded = torch.zeros_like(weight, dtype=exact) if wants_weight or wants_scale else None  # (V, D)
    width = -(-min(options.vocabulary_chunk, weight.shape[0]) // ALIGNMENT) * ALIGNMENT
    buffer = inputs.new_empty(min(options.token_chunk, h.shape[0]), width)
    losses = h.new_empty(h.shape[0], dtype=exact)  # (N,)
    for start in range(0, h.shape[0], options.token_chunk):
        chunk = slice(start, start + options.token_chunk)
        into = (None if dh is None else dh[chunk], dfolded)
        losses[chunk] = _chunk(inputs[chunk], folded, targets[chunk].unsqueeze(1), into, buffer, options)
    if dfolded is None or scale is None:
        return losses, dh, dfolded, None
    dscale = (dfolded * weight).sum(1) if wants_scale else None  # (V,)
    return losses, dh, dfolded.mul_(scale.unsqueeze(1)) if wants_weight else None, dscale


def _chunk(
    h: Tensor,
    folded: Tensor,
    targets: Tensor,
    gradients: tuple[Tensor | None, Tensor | None],
    buffer: Tensor,
    options: Options,
) -> Tensor:
    """Return the losses (n) of some tokens; adds what they have to the gradients of h (n, D) and of the
    folded matrix.
    """
    dh, dfolded = gradients
    gradient_wanted = dh is not None or dfolded is not None
    pieces = folded.split(options.vocabulary_chunk)  # (v, D) each
    starts = range(0, folded.shape[0], options.vocabulary_chunk)
    exact = torch.promote_types(h.dtype, torch.float32)
    filled = (torch.full(targets.shape, value, dtype=exact, device=h.device) for value in (-torch.inf, 0, torch.nan))
    rows = Rows(targets, targets != options.ignore_index, *filled)

    def logits(weight: Tensor) -> Tensor:
        return torch.mm(h, weight.mT, out=buffer[: h.shape[0], : weight.shape[0]])

    def multiply_out(z: Tensor, weight: Tensor, start: int) -> None:
        if dh is not None:
            add_product(dh, z, weight)
        if dfolded is not None:
            add_product(dfolded[start : start + weight.shape[0]], z.mT, h)

    at_once = gradient_wanted and len(pieces) == 1
    for start, weight in zip(starts, pieces, strict=True):
        z = logits(weight)  # (n, v)
        options.piece(z, rows, start, True, at_once)
        if at_once:
            multiply_out(z, weight, start)
    if gradient_wanted and not at_once:
        for start, weight in zip(starts, pieces, strict=True):
            z = logits(weight)  # (n, v)
            options.piece(z, rows, start, False, True)
            multiply_out(z, weight, start)
    return rows.losses()


def softmax_piece(z: Tensor, rows: Rows, start: int, statistics: bool, gradient: bool) -> None:
    """Take the logits z (n, v) of the words from ``start`` on into ``rows``, and overwrite them.

    With ``statistics`` the rows' largest, total and target logit are updated; with ``gradient`` z becomes
    p - onehot(target), 0 in rows that do not count, where the rows must know all words' logits by then.
    """
    column = (rows.targets - start).clamp(0, z.shape[1] - 1)  # (n, 1)
    here = rows.counted & (column == rows.targets - start)
    if statistics:
        rows.at_target.copy_(torch.where(here, z.gather(1, column).to(rows.at_target), rows.at_target))
    on_cpu = z.device.type == "cpu"
    size = max(LEAST_ROWS, PIECE * torch.get_num_threads() // z.shape[1]) if on_cpu else z.shape[0]
    for block, (_, counted, largest, total, _) in zip(z.split(size), rows.split(size), strict=True):
        values = block.to(largest.dtype)
        if statistics:
            new = torch.maximum(largest, values.amax(1, keepdim=True))
            values.sub_(new).exp_()
            total.mul_((largest - new).exp_()).add_(values.sum(1, keepdim=True))
            largest.copy_(new)
        else:
            values.sub_(largest).exp_()
        if gradient:
            values.mul_(counted / total)
            if values is not block:
                block.copy_(values)
    if gradient:
        wrong = torch.expm1(rows.at_target - rows.largest - rows.total.log())
        z.scatter_(1, column, torch.where(here, wrong.to(z.dtype), z.gather(1, column)))


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
    """Return whether addmm takes a float32 sum and half-precision factors: not in every PyTorch that has
    ``out_dtype``.
    """
    total = torch.zeros(16, 16, device="cuda")
    factor = total.bfloat16()
    try:
        torch.addmm(total, factor, factor, out_dtype=total.dtype, out=total)
    except RuntimeError:
        return False
    return True
