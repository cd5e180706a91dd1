"""The pre-activations of nGPT and of CEM's Llama that a GPU is given, in bfloat16."""

from collections.abc import Iterator
from functools import partial

import torch

from paper_repro.kernels.scaled_swiglu.fused import ScaledSwiGLU, ScaledSwiGLUGradient
from paper_repro.kernels.static.shapes import Launch, Op, Shape, Work, meta, moved

WRITTEN = {"_forward": ("out",), "_backward": ("dpre", "sums_u", "sums_nu")}


def _activate(tokens: int, hidden: int, scaled: bool) -> None:
    pre, out = (meta(tokens, columns, dtype=torch.bfloat16) for columns in (2 * hidden, hidden))  # (N, 2M), (N, M)
    scales = (meta(hidden), meta(hidden)) if scaled else (None, None)
    ScaledSwiGLU.forward(pre, *scales)
    ScaledSwiGLUGradient.forward(out, pre, *scales)


def _work(launch: Launch) -> Work:
    return Work(launch.given["pre"].numel() // 2, moved(launch, WRITTEN[launch.name]))


def _shapes() -> Iterator[Shape]:
    models = (
        ("nGPT 0.5B", 8192, 4096, True),
        ("nGPT 1B", 8192, 5120, True),
        ("CEM's Llama, 86M and 108M", 16384, 1792, False),
        ("CEM's Llama, 134M", 16384, 2048, False),
        ("CEM's Llama, 162M", 16384, 2304, False),
    )
    for model, tokens, hidden, scaled in models:
        yield Shape(model, f"{tokens:,} tokens, M={hidden}", partial(_activate, tokens, hidden, scaled))


DECLARED = Op(
    element="numbers of the result",
    tiles=(
        "A program takes up to 1,024 columns of every so many-th token, 8 columns a thread, one load of 16 bytes of "
        "bfloat16: scales and sums of their gradients stay in registers. There are up to 4,096 programs, several for "
        "each place on the multiprocessors, so that the last ones to end leave little idle."
    ),
    work=_work,
    shapes=tuple(_shapes()),
)
