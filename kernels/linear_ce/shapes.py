"""The pieces of logits that a GPU is given, in bfloat16."""

from collections.abc import Iterator
from functools import partial

import torch

from paper_repro.kernels.linear_ce import chunk_sizes
from paper_repro.kernels.linear_ce.closed_form import Rows
from paper_repro.kernels.linear_ce.fused import softmax_piece
from paper_repro.kernels.static.shapes import Launch, Op, Shape, Work, meta, moved


def _piece(rows: int, words: int, gradient: bool) -> None:
    logits = meta(rows, words, dtype=torch.bfloat16)  # (n, v)
    counted = meta(rows, 1, dtype=torch.bool)
    known = Rows(meta(rows, 1, dtype=torch.int64), counted, *(meta(rows, 1) for _ in range(3)))
    softmax_piece(logits, known, 0, True, gradient)


def _work(launch: Launch) -> Work:
    z, gradient = launch.given["z"], launch.given["GRADIENT"]
    statistics = ("largest", "total")
    bytes_moved = moved(launch, ("at_target",), statistics + (("z",) if gradient else ()))
    return Work(z.numel(), bytes_moved)


def _shapes() -> Iterator[Shape]:
    for model, tokens in (("nGPT", 8192), ("CEM", 16384)):
        rows, words = chunk_sizes(tokens, 32000, on_cpu=False)
        for phase, gradient in (("training", True), ("evaluation", False)):
            size = f"{rows:,} of {tokens:,} tokens, {words:,} words"
            yield Shape(f"{model}, {phase}", size, partial(_piece, rows, words, gradient))


DECLARED = Op(
    element="logits",
    tiles=(
        "A program takes a row, up to 8,192 words at a time, 16 a thread: two loads of 16 bytes of bfloat16 are then "
        "in flight from each. A row is read twice, the second time from the cache: 64 kB of bfloat16."
    ),
    work=_work,
    shapes=tuple(_shapes()),
)
