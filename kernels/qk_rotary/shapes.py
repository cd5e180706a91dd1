"""The queries and keys of nGPT, of CEM's Llama and of EBT's baseline that a GPU is given: views of one product."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from paper_repro.kernels.qk_rotary.fused import Rotation, RotationGradient
from paper_repro.kernels.static.shapes import Launch, Op, Shape, Work, meta, moved

NGPT, GPT = (True, True), (False, False)
"""Whether rows are scaled and of unit norm."""
WRITTEN = {"_forward": ("query_out", "key_out"), "_backward": ("query_out", "key_out", "partial")}


class Sizes(NamedTuple):
    """The queries of one layer, and what becomes of them beside the rotation."""

    batch: int
    tokens: int
    heads: int
    width: int
    kind: str
    scaled: bool
    unit: bool

    def __str__(self) -> str:
        return f"{self.batch} x {self.tokens:,} tokens, H={self.heads}, Y={self.width}, {self.kind}"


def _turn(sizes: Sizes) -> None:
    batch, tokens, heads, width, kind, scaled, unit = sizes
    query, key, _ = meta(batch, tokens, 3, heads, width, dtype=getattr(torch, kind)).unbind(2)  # (B, T, H, Y) each
    cos, sin = meta(tokens, width // 2), meta(tokens, width // 2)  # (T, Y/2) each
    tables = cos, sin, sin
    scale = meta(heads, width) if scaled else None
    turned = Rotation.forward(*tables, scale, unit, query, key)
    RotationGradient.forward(*tables, scale, unit, query, key, *turned)


def _work(launch: Launch) -> Work:
    given = launch.given
    elements = sum(given[name].numel() for name in ("query", "key"))
    return Work(elements, moved(launch, WRITTEN[launch.name]))


def _shapes() -> Iterator[Shape]:
    bf16, fp32 = "bfloat16", "float32"
    models = (
        ("nGPT 0.5B", Sizes(8, 1024, 16, 64, bf16, *NGPT)),
        ("nGPT 0.5B, 8k context", Sizes(1, 8192, 16, 64, bf16, *NGPT)),
        ("nGPT 1B", Sizes(8, 1024, 20, 64, bf16, *NGPT)),
        ("nGPT's GPT 0.5B", Sizes(8, 1024, 16, 64, bf16, *GPT)),
        ("CEM's Llama, 86M", Sizes(8, 2048, 8, 84, bf16, *GPT)),
        ("CEM's Llama, 108M", Sizes(8, 2048, 12, 56, bf16, *GPT)),
        ("CEM's Llama, 134M", Sizes(8, 2048, 12, 64, bf16, *GPT)),
        ("CEM's Llama, 162M", Sizes(8, 2048, 12, 72, bf16, *GPT)),
        ("EBT's Transformer++ XXS", Sizes(64, 256, 6, 64, fp32, *GPT)),
        ("EBT's Transformer++ Large", Sizes(64, 256, 16, 96, fp32, *GPT)),
        ("EBT's Transformer++ XL", Sizes(64, 256, 32, 64, fp32, *GPT)),
    )
    for model, sizes in models:
        yield Shape(model, str(sizes), partial(_turn, sizes))


DECLARED = Op(
    element="numbers of queries and keys",
    tiles=(
        "A program takes heads of a token, up to 1,024 numbers in the next powers of two, 8 a thread (one load of 16 "
        "bytes of bfloat16), so that the tables of the token are read once for all of them; the heads of a tile divide "
        "H where that leaves at least 4. Programs stay and go from token to token: as many as give a multiprocessor 64 "
        "warps forward and 32 backward, where a thread has twice the registers; each reads the scales and writes their "
        "gradients' sums once."
    ),
    work=_work,
    shapes=tuple(_shapes()),
)
