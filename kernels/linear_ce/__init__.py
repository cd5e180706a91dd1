"""Cross entropy of scaled linear logits (nGPT, equation 3) that never holds all logits.

Legend: D width, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from paper_repro.kernels.dispatch import Way, choose, triton_way, under_autocast
from paper_repro.kernels.linear_ce import closed_form, reference

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
        return reference.linear_cross_entropy(h, weight, targets, scale, ignore_index, reduction)
    graded = torch.is_grad_enabled()
    wanted = tuple(graded and value is not None and value.requires_grad for value in (h, weight, scale))
    arguments, options = _prepared(
        h, weight, targets, scale, ignore_index, token_chunk, vocabulary_chunk, piece, wanted
    )
    divisor = (arguments[2] != ignore_index).sum() if reduction == "mean" else None
    with torch.autocast(h.device.type, enabled=False):
        loss, *_ = closed_form.LinearCrossEntropy.apply(*arguments, divisor, options)
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
        return reference.linear_cross_entropy(h, weight, targets, scale, ignore_index, "none")
    arguments, options = _prepared(
        h, weight, targets, scale, ignore_index, token_chunk, vocabulary_chunk, piece, (False,) * 3
    )
    with torch.autocast(h.device.type, enabled=False):
        return closed_form.negative_log_likelihoods(*arguments, options).reshape(targets.shape)  # (N,) -> (...,)


def _prepared(
    h: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor | None,
    ignore_index: int,
    token_chunk: int | None,
    vocabulary_chunk: int | None,
    piece: closed_form.Piece,
    wanted: tuple[bool, ...],
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor | None], closed_form.Options]:
    """Return h (N, D), weight, targets (N), scale (V) or None; and how they are computed."""
    flat = h.reshape(-1, h.shape[-1])  # (N, D)
    tokens, words = chunk_sizes(flat.shape[0], weight.shape[0], h.device.type == "cpu")
    for name, size in (("token_chunk", token_chunk), ("vocabulary_chunk", vocabulary_chunk)):
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"{name} must be a whole number from 1 on, or None, got {size!r}")
    options = closed_form.Options(
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


def _piece(
    implementation: str, h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | None
) -> closed_form.Piece | None:
    """Return what computes on a piece of logits; None for the definition."""
    given = [h, weight] if scale is None else [h, weight, scale]
    words, device = weight.shape[0], h.device.type
    few = words < LEAST_WORDS or targets.numel() * words < SMALL
    large = device != "meta" and not (few and device == "cpu")
    return choose("linear_cross_entropy", WAYS, implementation, given, large=large)()


def _fused() -> closed_form.Piece:
    from paper_repro.kernels.linear_ce import fused

    return fused.softmax_piece


def _closed_form() -> closed_form.Piece:
    return closed_form.softmax_piece


def _definition() -> None:
    return None


WAYS: tuple[Way[Callable[[], closed_form.Piece | None]], ...] = (
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
