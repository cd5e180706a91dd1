"""CET's tokens and images at the paper's size that a GPU is given, float32."""

from functools import partial

import torch

from paper_repro.kernels.projected_step.fused import image_step, projected_step
from paper_repro.kernels.static.shapes import Launch, Op, Shape, Work, meta, moved

IMAGES, TOKENS, WIDTH = 128, 121, 768
SIDE, NUMBERS, HIDDEN = 12, 300, 5808
"""Blocks to a side, numbers of a block, and of a row that patches lie in, beside queries, keys and memories."""


def _tokens() -> None:
    z = meta(IMAGES, TOKENS, WIDTH)  # (B, N, D)
    projected_step(z, meta(IMAGES, TOKENS, WIDTH), 1.0, z)


def _image(nudged: bool) -> None:
    y = meta(IMAGES, SIDE, SIDE, NUMBERS)  # (B, S, S, C)
    patches = meta(IMAGES, TOKENS, HIDDEN)[..., HIDDEN - 4 * NUMBERS :]  # (B, N, 4 C)
    wanted, beta = (torch.empty_like(y), meta(IMAGES)) if nudged else (None, None)  # (B, S, S, C), (B,)
    image_step(y, patches, meta(NUMBERS), 1.0, wanted, beta, torch.empty_like(y))


def _work(launch: Launch) -> Work:
    state = launch.given["y" if "y" in launch.given else "z"]
    return Work(state.numel(), moved(launch, ("out", "change")))


DECLARED = Op(
    element="numbers of the state",
    tiles=(
        "A program takes a token or a block of the image, whole, since the mean, the norm and the largest change need "
        "all of it; a thread holds 8 numbers of each operand, two loads of 16 bytes of float32."
    ),
    work=_work,
    shapes=(
        Shape("CET, tokens", f"{IMAGES} x {TOKENS} tokens, D={WIDTH}", _tokens),
        Shape("CET, images", f"{IMAGES} images of {SIDE}² blocks of {NUMBERS}", partial(_image, False)),
        Shape("CET, nudged images", f"{IMAGES} images of {SIDE}² blocks of {NUMBERS}", partial(_image, True)),
    ),
)
