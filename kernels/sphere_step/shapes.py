"""The rows of nGPT's states that a GPU is given."""

from functools import partial

import torch

from paper_repro.kernels.sphere_step.fused import SphereStep, SphereStepGradient
from paper_repro.kernels.static.shapes import Launch, Op, Shape, Work, meta, moved

TOKENS = 8192
"""Tokens of a batch: 8 windows of 1k, 2 of 4k or 1 of 8k."""
WRITTEN = {"_forward": ("out", "inverse"), "_backward": ("dh", "df", "partial")}


def _step(width: int) -> None:
    h, f, alpha = meta(TOKENS, width), meta(TOKENS, width, dtype=torch.bfloat16), meta(width)  # (N, D) twice, (D,)
    out, inverse = SphereStep.forward(h, f, alpha, True)
    SphereStepGradient.forward(out, h, f, alpha, inverse, True)


def _work(launch: Launch) -> Work:
    return Work(launch.given["h"].numel(), moved(launch, WRITTEN[launch.name]))


DECLARED = Op(
    element="numbers of the state",
    tiles=(
        "A program holds whole rows, since their norms need all of a row, and at least 1,024 numbers; a thread holds 8 "
        "of each operand, one load of 16 bytes of bfloat16. Programs stay: as many as give a multiprocessor 64 warps "
        "forward, which cover the latency of memory, and 32 backward, where a thread has twice the registers; each "
        "reads alpha and writes its sums once."
    ),
    work=_work,
    shapes=tuple(
        Shape(f"nGPT {size}", f"{TOKENS:,} tokens, D={width}", partial(_step, width))
        for size, width in (("0.5B", 1024), ("1B", 1280))
    ),
)
