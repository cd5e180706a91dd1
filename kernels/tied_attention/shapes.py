"""CEM's queries and keys that a GPU is given, in bfloat16; with a score that all heads share, or without."""

from collections.abc import Iterator
from functools import partial

import torch

from paper_repro.kernels.static.shapes import Launch, Op, Shape, Work, meta, moved
from paper_repro.kernels.tied_attention.fused import Attention
from paper_repro.kernels.tied_attention.reference import Positions

SEQUENCES, TOKENS = 8, 2048
PRODUCTS = {"forward": 2, "to_queries": 3, "to_keys": 4, "over_heads": 2}
"""Products of Y columns for each score: q k, and p k on the way there; q k, G k, and what is summed on the way back."""
WRITTEN = {
    "forward": ("out", "lse"),
    "to_queries": ("delta", "dquery", "partial"),
    "to_keys": (),
    "over_heads": ("summed",),
}


def _descend(width: int, heads: int, shared: bool) -> None:
    """Launch what an inner step does, and what its way back does."""
    head = SEQUENCES, TOKENS, heads, width // heads
    query, keys, direction = (meta(*head, dtype=torch.bfloat16) for _ in range(3))  # (B, T, H, Y) each
    state, context = (meta(SEQUENCES, TOKENS, width, dtype=torch.bfloat16) if shared else None for _ in range(2))
    lse = meta(*head[:3])  # (B, T, H)
    attention = Attention(keys, context, Positions(meta(heads), meta(), meta()), 8.0)
    out = attention.forward(query, state, lse)  # (B, T, H, Y)
    attention.backward(direction, query, state, lse, out)


def _work(launch: Launch) -> Work:
    """Count a launch; of tensors of all pairs of tokens, (B, T, T), a half is seen."""
    kernel, given = launch.name, launch.given
    heads, width = given["query"].shape[2:]  # (B, T, H, Y)
    pairs = SEQUENCES * TOKENS * (TOKENS + 1) // 2
    updated = ("dkeys",) if kernel == "to_keys" else ()
    square = [given[name] for name in ("shared", "summed") if name in given and given[name].ndim == 3]
    hidden = sum((value.numel() - pairs) * value.element_size() for value in square)
    scores = pairs * heads
    return Work(scores, moved(launch, WRITTEN[kernel], updated) - hidden, 2 * width * scores * PRODUCTS[kernel])


def _shapes() -> Iterator[Shape]:
    for model, width, heads, shared in (
        ("CEM 86M", 672, 8, True),
        ("CEM 108M", 672, 12, True),
        ("CEM 134M", 768, 12, True),
        ("CEM 134M without a diagonal", 768, 12, False),
        ("CEM 162M", 864, 12, True),
    ):
        size = f"{SEQUENCES} x {TOKENS:,} tokens, H={heads}, Y={width // heads}"
        yield Shape(model, size, partial(_descend, width, heads, shared))


DECLARED = Op(
    element="scores",
    tiles=(
        "A program keeps queries, or keys, of one head, and goes over the others: 64 of each in bfloat16, the fastest "
        "of the tiles that were tried on an H100; keys of a head with a tail (72 is 64 + 16, 84 is 64 + 32, where one "
        "power of two would be 128) meet 32 queries at once, since their program holds two sums of a head's columns. "
        "On an A100, whose products have their factors in registers, one side is half as long, or numbers spill. "
        "Programs of one tile's heads lie beside each other and read the same tile of what the heads share."
    ),
    work=_work,
    shapes=tuple(_shapes()),
    elementwise=False,
)
