"""The factors of rotary positions, for head widths Y and positions 0 ... P-1."""

from typing import NamedTuple

import torch
from torch import Tensor


class RotaryTables(NamedTuple):
    """Factors for the pair (a, b) = (x_2i, x_2i+1) at position t: a' = cos a - sin_first b, b' = sin_second a + cos b.

    Each (P, Y/2).
    """

    cos: Tensor
    sin_first: Tensor
    sin_second: Tensor


def textbook_tables(
    length: int,
    width: int,
    base: float = 10000.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> RotaryTables:
    """Compute rotations by the angles t base^(-2i/Y) (RoPE, arXiv 2104.09864, equation 15); computed in float64.

    Args:
        length: P.
        width: Y, of a head.

    Raises:
        ValueError: an odd or empty head, or no position.
    """
    angles = _angles(length, width, base)
    cos, sin = (table.to(device=device, dtype=dtype) for table in (angles.cos(), angles.sin()))
    return RotaryTables(cos, sin, sin)


def published_tables(
    length: int,
    width: int,
    base: float = 10000.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> RotaryTables:
    """Return what nGPT's published code computes, which is no rotation (NVIDIA/ngpt, issue 10): a' = -E_Y/2+i b, b' =
    E_i a.

    E is the table of one position with sines and cosines in turn, E_2j = sin, E_2j+1 = cos of t base^(-2j/Y), read as
    if it had all sines before all cosines; the identity term is missing.

    Args, Raises: as for ``textbook_tables``.
    """
    angles = _angles(length, width, base)
    interleaved = torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(device=device, dtype=dtype)
    second, first = (half.contiguous() for half in interleaved.chunk(2, -1))
    return RotaryTables(torch.zeros_like(first), first, second)


def check_width(width: int) -> None:
    """
    Raises:
        ValueError: an odd or empty head.
    """
    if width < 2 or width % 2:
        raise ValueError(f"head width must be even and at least 2, got {width} (RoPE turns pairs)")


def _angles(length: int, width: int, base: float) -> Tensor:
    """Compute the angles t base^(-2i/Y), (P, Y/2)."""
    check_width(width)
    if length < 1:
        raise ValueError(f"length must be 1 or more, got {length}")
    rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * rates
