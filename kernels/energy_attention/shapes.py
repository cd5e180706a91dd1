"""CET's queries and keys at the paper's size that a GPU is given: views of one product, over which results go."""

from functools import partial

import torch

from paper_repro.kernels.energy_attention.fused import energy_attention
from paper_repro.kernels.static.shapes import Launch, Op, Shape, Work, meta, moved, tf32

IMAGES, HEADS, TOKENS, WIDTH, HIDDEN = 128, 12, 121, 64, 5808
"""B, H, T, Y, and the numbers of a row that queries and keys lie in, memories and patches beside them."""

WRITTEN = {
    "_whole": (("by_query", "by_key", "lse"), ()),
    "_over_keys": (("by_query", "lse"), ("by_key",)),
    "_over_queries": (("by_key",), ("by_query",)),
}
"""What a kernel writes, and what it is given for the other one."""


def _attend(dtype: torch.dtype, rounded: bool) -> None:
    both = meta(IMAGES, TOKENS, HIDDEN, dtype=dtype)[..., : 2 * HEADS * WIDTH]  # (B, T, 2 H Y)
    query, key = both.unflatten(-1, (2, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)  # (B, H, T, Y) each
    with tf32(rounded):
        energy_attention(query, key, 0.25, (query, key))


def _work(launch: Launch) -> Work:
    """Count a launch; a score is made of Y products, and goes into Y products for each result."""
    written, unused = WRITTEN[launch.name]
    results = sum(name.startswith("by_") for name in written)
    scores = IMAGES * HEADS * TOKENS**2
    return Work(scores, moved(launch, written, unused=unused), 2 * WIDTH * scores * (1 + results))


SIZE = f"{IMAGES} x {TOKENS} tokens, H={HEADS}, Y={WIDTH}"
DECLARED = Op(
    element="scores",
    tiles=(
        "Up to 128 tokens one program takes a head of an image whole, so that scores are computed once and results may "
        "be written over what is read. Exact float32 products, which no matrix unit computes, go over tiles of "
        "2,048 numbers, none of them fetched ahead: their code is multiplied out, and larger ones spill."
    ),
    work=_work,
    shapes=(
        Shape("CET, TF32", SIZE, partial(_attend, torch.float32, True)),
        Shape("CET, bfloat16", SIZE, partial(_attend, torch.bfloat16, False)),
        Shape("CET, exact float32 (machine.tf32=false)", SIZE, partial(_attend, torch.float32, False)),
    ),
    elementwise=False,
)
