"""Files that probes leave beside a record: strips of images as one PNG, and numbers with few digits."""

import io
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

PIXELS = 90_000
"""Pixels of a strip at most: at three bytes each a photograph's stay below the size that an attachment may have."""


def rounded(values: Tensor | Iterable[float], digits: int = 5) -> Any:
    """Return numbers with so many significant digits, those of a tensor of several dimensions as lists of lists."""
    if isinstance(values, Tensor):
        if values.ndim > 1:
            return [rounded(row, digits) for row in values]
        values = values.tolist()
    return [float(f"{value:.{digits}g}") for value in values]


def png(images: Tensor) -> bytes:
    """Encode images (B, C, H, H) in [-1, 1] as one PNG of 8 bits; large ones at a half, a third ... of their side."""
    from PIL import Image

    count, _, height, _ = images.shape
    smaller = next(n for n in range(1, height + 1) if count * (height // n) ** 2 <= PIXELS or n == height)
    tiles = F.avg_pool2d(images.float().clamp(-1, 1), smaller)
    pixels = tiles.add(1).mul(127.5).round().to(torch.uint8).cpu()
    strip = pixels.permute(2, 0, 3, 1).flatten(1, 2)  # (H, B H, C)
    stream = io.BytesIO()
    Image.fromarray(strip.squeeze(-1).numpy()).save(stream, "PNG", optimize=True)
    return stream.getvalue()
