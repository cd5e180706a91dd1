"""Cross entropy of scaled linear logits (nGPT, equation 3) that never holds all logits.

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
from torch._C._functorch import peek_interpreter_stack
from torch.nn import functional

from paper_repro.kernels.dispatch import Way, choose, triton_way, under_autocast
from paper_repro.kernels.first_order import FirstOrder


def linear_cross_entropy_reference(
    h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """Compute the cross entropy of z_v = scale_v (weight_v . h), in float32 at least; reduction "mean", "sum" or "none"
    (...).
    """
    logits = functional.linear(h, weight)
    if scale is not None:
        logits = logits * scale
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    loss = functional.cross_entropy(
        logits.reshape(-1, weight.shape[0]), targets.reshape(-1), ignore_index=ignore_index, reduction=reduction
    )
    return loss.reshape(targets.shape) if reduction == "none" else loss


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


def _losses(h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None, options: Options) -> Tensor:
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


REDUCTIONS = ("mean", "sum")
SMALL, LEAST_WORDS = 1 << 20, 256
"""With fewer logits (4 MiB in float32) or words "auto" takes the definition on a CPU: the calls would take longer."""


class Limits(NamedTuple):
    """Tokens in a chunk, at least and at most, and the logits from which the vocabulary is cut as well."""

    least: int
    most: int
    logits: int


CPU, ELSEWHERE = Limits(256, 512, 1 << 26), Limits(1024, 4096, 1 << 28)
"""On a CPU 256 tokens keep the matrix products near their best rate, on a GPU some thousand."""


def chunk_sizes(tokens: int, vocabulary: int, on_cpu: bool) -> tuple[int, int]:
    """Choose the tokens and words of a piece of logits: an eighth of the tokens within ``Limits``, and all words if
    they fit.

    An eighth of one array of logits is well below a quarter of what the definition holds, three such arrays or more.
    """
    limits = CPU if on_cpu else ELSEWHERE
    rows = max(limits.least, min(limits.most, tokens // 8, limits.logits // vocabulary))
    return min(rows, tokens), min(vocabulary, max(1, limits.logits // rows))


def linear_cross_entropy(
    h: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    token_chunk: int | None = None,
    vocabulary_chunk: int | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Compute the mean or sum of logsumexp(z) - z_target with z_v = scale_v (weight_v . h) (nGPT, equation 3).

    "reference" is the definition, which holds all logits and which autograd differentiates to any order; "closed_form"
    and "fused" (its softmax by Triton) hold one piece at a time and have first derivatives in reverse mode only,
    computed in the forward pass with three matrix products, and a fourth where the vocabulary is cut.  "auto" is fused
    on CUDA and the closed form on a CPU from ``SMALL`` logits on; the definition below that, under torch.func and
    torch.compile, and where second derivatives may be asked for.

    The logits have the dtype of ``h`` and ``weight``, or autocast's as ``functional.linear`` would; the softmax and the
    gradients' sums over pieces are float32 at least.  Scale and weight are multiplied before the product, so in half
    precision their product is rounded, not that of scale and logit.  As in PyTorch, the mean is nan and the gradients
    are 0 where no target counts.

    Args:
        h: (..., D).
        weight: (V, D).
        targets: (...) int64.  On CUDA their range is not checked, which would wait for the device: that is the data
            module's part.  A target beyond it makes the loss nan; the definition fails as PyTorch does.
        scale: (V,) or (1,); None is 1.
        reduction: "mean" over the targets that count, or "sum".
        token_chunk, vocabulary_chunk: most tokens and words of a piece; ``chunk_sizes`` by default.

    Returns:
        (), float32 or float64.

    Raises:
        ValueError: shapes, dtypes or a target that do not fit, an unknown name, or an implementation that is not
            possible here.
        NotImplementedError: a second or forward-mode derivative through pieces.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    _check(h, weight, targets, scale, ignore_index)
    piece = _piece(implementation, h, weight, targets, scale)
    if piece is None:
        return linear_cross_entropy_reference(h, weight, targets, scale, ignore_index, reduction)
    graded = torch.is_grad_enabled()
    wanted = tuple(graded and value is not None and value.requires_grad for value in (h, weight, scale))
    arguments, options = _prepared(
        h, weight, targets, scale, ignore_index, token_chunk, vocabulary_chunk, piece, wanted
    )
    divisor = (arguments[2] != ignore_index).sum() if reduction == "mean" else None
    with torch.autocast(h.device.type, enabled=False):
        loss, *_ = LinearCrossEntropy.apply(*arguments, divisor, options)
    return loss


@torch.no_grad()
def negative_log_likelihoods(
    h: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor | None = None,
    ignore_index: int = -100,
    token_chunk: int | None = None,
    vocabulary_chunk: int | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Compute logsumexp(z) - z_target of each token, 0 where the target is ``ignore_index``; without gradients.

    Arguments and errors are those of ``linear_cross_entropy``.

    Returns:
        (...), float32 or float64.
    """
    _check(h, weight, targets, scale, ignore_index)
    piece = _piece(implementation, h, weight, targets, scale)
    if piece is None:
        return linear_cross_entropy_reference(h, weight, targets, scale, ignore_index, "none")
    arguments, options = _prepared(
        h, weight, targets, scale, ignore_index, token_chunk, vocabulary_chunk, piece, (False,) * 3
    )
    with torch.autocast(h.device.type, enabled=False):
        return _losses(*arguments, options).reshape(targets.shape)  # (N,) -> (...,)


def _prepared(
    h: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor | None,
    ignore_index: int,
    token_chunk: int | None,
    vocabulary_chunk: int | None,
    piece: Piece,
    wanted: tuple[bool, ...],
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor | None], Options]:
    """Return h (N, D), weight, targets (N), scale (V) or None; and how they are computed."""
    flat = h.reshape(-1, h.shape[-1])  # (N, D)
    tokens, words = chunk_sizes(flat.shape[0], weight.shape[0], h.device.type == "cpu")
    for name, size in (("token_chunk", token_chunk), ("vocabulary_chunk", vocabulary_chunk)):
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"{name} must be a whole number from 1 on, or None, got {size!r}")
    options = Options(
        ignore_index,
        token_chunk or tokens,
        vocabulary_chunk or words,
        _autocast_dtype(h) or h.dtype,
        piece,
        (wanted[0], wanted[1], wanted[2]),
    )
    full = None if scale is None else scale.expand(weight.shape[0])  # (V,)
    return (flat, weight, targets.reshape(-1).contiguous(), full), options


def _autocast_dtype(h: Tensor) -> torch.dtype | None:
    """Return what autocast, if active, makes of the factors of a matrix product; it leaves float64 alone."""
    if h.dtype == torch.float64 or not under_autocast(h):
        return None
    return torch.get_autocast_dtype(h.device.type)


def _piece(implementation: str, h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None) -> Piece | None:
    """Return what computes on a piece of logits; None for the definition."""
    given = [h, weight] if scale is None else [h, weight, scale]
    words, device = weight.shape[0], h.device.type
    few = words < LEAST_WORDS or targets.numel() * words < SMALL
    large = device != "meta" and not (few and device == "cpu")
    return choose("linear_cross_entropy", WAYS, implementation, given, large=large)()


def _fused() -> Piece:
    from paper_repro.kernels.linear_ce import triton

    return triton.softmax_piece


def _closed_form() -> Piece:
    return softmax_piece


def _definition() -> None:
    return None


WAYS: tuple[Way[Callable[[], Piece | None]], ...] = (
    triton_way(_fused),
    Way("closed_form", _closed_form, order=1, transforms=False, compiler=False, empty=False, auto_large=True),
    Way("reference", _definition),
)


def _check(h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None, ignore_index: int) -> None:
    fitting = (
        h.ndim >= 1
        and weight.ndim == 2
        and h.shape[-1] == weight.shape[1]
        and targets.shape == h.shape[:-1]
        and (scale is None or scale.shape in (weight.shape[:1], (1,)))
    )
    if not fitting:
        found = ", ".join(str(tuple(value.shape)) for value in (h, weight, targets, scale) if value is not None)
        raise ValueError(
            "shapes must be h (..., D), weight (V, D), targets (...) and, if given, scale (V,) or (1,); got " + found
        )
    if h.dtype != weight.dtype and (torch.float64 in (h.dtype, weight.dtype) or _autocast_dtype(h) is None):
        raise ValueError(f"h and weight must have one dtype outside autocast, got {h.dtype} and {weight.dtype}")
    if targets.dtype != torch.int64:
        raise ValueError(f"targets must be int64, got {targets.dtype}")
    if targets.device.type == "cpu" and peek_interpreter_stack() is None and not torch.compiler.is_compiling():
        wrong = targets[(targets != ignore_index) & ((targets < 0) | (targets >= weight.shape[0]))]
        if wrong.numel():
            raise ValueError(
                f"{wrong.numel()} of {targets.numel()} targets are neither in [0, {weight.shape[0]}) nor "
                f"ignore_index={ignore_index}, one of them {int(wrong[0])}"
            )
