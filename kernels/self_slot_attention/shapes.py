"""EBT's rows and columns that a GPU is given: float32, with products in TF32."""

from collections.abc import Iterator
from functools import partial

from paper_repro.kernels.self_slot_attention import fused
from paper_repro.kernels.self_slot_attention.curvature import fused as curvature
from paper_repro.kernels.self_slot_attention.second_order import Cotangents, Observed, OwnRows
from paper_repro.kernels.static.shapes import Launch, Op, Shape, Work, meta, moved, tf32

PRODUCTS = {"_forward": 2, "_to_rows": 3, "_to_columns": 4, "_bend_rows": 6, "_bend_columns": 6}
"""Products of Y channels for each score, those of a first pass counted once: scores, G v, t and what is summed."""
WRITTEN = {
    "_forward": ("out", "lse"),
    "_to_rows": ("dquery",),
    "_to_columns": ("dkeys", "dvalues"),
    "_bend_rows": ("mean_t", "mean_r", "by_direction", "by_query"),
    "_bend_columns": ("by_keys", "by_values"),
}


def _differentiate(sequences: int, samples: int, heads: int, tokens: int, width: int, lead: int) -> None:
    """Launch what a step of training does: the pass, its gradient, and the gradient of that by everything."""
    rows = (sequences, heads, samples * tokens)
    columns = (sequences, heads, tokens + lead, width)
    with tf32():
        given = Observed(meta(*rows, width), meta(*columns), meta(*columns), lead, width**-0.5)
        out, lse = fused.forward(given)  # (B, H, N T, Y), (B, H, N T, 1)
        fused.gradient(given, out, lse, lse, (True, True, True))
        own = OwnRows(*(meta(*rows, 1) for _ in range(4)))
        along = Cotangents(meta(*rows, width), None, None)
        curvature.curvature(given, out, lse, lse, along, own, (True,) * 4)


def _work(launch: Launch) -> Work:
    """Count a launch; row i sees the first i + 1 + lead columns."""
    kernel, given = launch.name, launch.given
    tokens, width = given["tokens"], given["Y"]
    seen = tokens * (tokens + 1) // 2 + tokens * given["LEAD"]
    scores = given["query"].numel() // (tokens * width) * seen
    return Work(scores, moved(launch, WRITTEN[kernel]), 2 * width * scores * PRODUCTS[kernel])


def _shapes() -> Iterator[Shape]:
    for model, *sizes in (
        ("EBT XXS", 64, 1, 6, 256, 64, 0),
        ("EBT XXS with a step token", 64, 1, 6, 256, 64, 1),
        ("EBT XXS, 10 samples", 64, 10, 6, 256, 64, 0),
        ("EBT on frames", 256, 1, 6, 15, 64, 0),
        ("EBT Small", 64, 1, 12, 256, 64, 0),
        ("EBT Large", 64, 1, 16, 256, 96, 0),
        ("EBT XL", 64, 1, 32, 256, 64, 0),
        ("the bench attn_hvp", 1, 1, 4, 2048, 64, 0),
    ):
        size = "{0} x {3:,} tokens, H={2}, Y={4}".format(*sizes)
        yield Shape(model, size, partial(_differentiate, *sizes))


DECLARED = Op(
    element="scores",
    tiles=(
        "A program holds a tile of rows, or of columns, of one head, and meets as many of the other side at once: as "
        "many as make a tile of 8 kB, at most 64 (32 in exact float32), since two results, two operands and two tiles "
        "of scores lie in registers together."
    ),
    work=_work,
    shapes=tuple(_shapes()),
    elementwise=False,
)
