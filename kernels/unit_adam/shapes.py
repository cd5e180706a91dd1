"""The parameters of nGPT that a GPU updates."""

from collections.abc import Iterator
from functools import partial

import torch

from paper_repro.kernels.static.shapes import Launch, Op, Shape, Work, meta
from paper_repro.kernels.unit_adam.fused import adam_
from paper_repro.kernels.unit_adam.reference import Four, Settings

SETTINGS = Settings(step=1, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0)
WORDS = 32000


def _update(shapes: list[tuple[int, ...]], unit_rows: bool, dtype: torch.dtype) -> None:
    adam_([_four(shape, dtype) for shape in shapes], SETTINGS, unit_rows)  # four tensors (rows, D) or (numbers,) each


def _four(shape: tuple[int, ...], dtype: torch.dtype) -> Four:
    return meta(*shape, dtype=dtype), meta(*shape, dtype=dtype), meta(*shape, dtype=dtype), meta(*shape, dtype=dtype)


def _matrices(width: int, layers: int) -> list[tuple[int, ...]]:
    """Return the shapes of a model's matrices, each stored with rows of D."""
    rows = [3 * width, width, 8 * width, 4 * width] * layers
    return [(count, width) for count in (WORDS, WORDS, *rows)]


def _scales(width: int, layers: int) -> list[tuple[int, ...]]:
    """Return the shapes of a model's scales and rates, which are vectors."""
    return [(count,) for count in (WORDS, *[width, 4 * width, 4 * width, width, width] * layers)]


def _work(launch: Launch) -> Work:
    """Count p, m and v twice, for they are updated, and g once; a row that is not full is counted as one that is."""
    given = launch.given
    elements = launch.programs * given["ROWS"] * given["WIDTH"]
    bits = [given[name].primitive_bitwidth for name in "PPGMMVV"]
    return Work(elements, elements * sum(bits) // 8)


def _shapes() -> Iterator[Shape]:
    for model, width, layers in (("nGPT 0.5B", 1024, 24), ("nGPT 1B", 1280, 36)):
        for part, shapes, unit in (
            ("matrices", _matrices(width, layers), True),
            ("scales", _scales(width, layers), False),
        ):
            size = f"{len(shapes)} tensors, float32"
            yield Shape(f"{model}, {part}", size, partial(_update, shapes, unit, torch.float32))
    stored = _matrices(1024, 24)[2:]
    size = f"{len(stored)} tensors, bfloat16"
    yield Shape("nGPT 0.5B, matrices stored in bfloat16", size, partial(_update, stored, True, torch.bfloat16))


DECLARED = Op(
    element="parameters",
    tiles=(
        "A program takes whole rows, whose norms need all of a row, at least 2,048 numbers of one parameter, 16 a "
        "thread: four loads of 16 bytes of float32 are in flight for each of the four operands."
    ),
    work=_work,
    shapes=tuple(_shapes()),
)
