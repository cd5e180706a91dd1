"""How the fused kernels lay queries and keys on programs, by the registers and the shared memory that they take.

Legend: Y head width.
"""

from typing import NamedTuple

LEAST = 16
"""What a matrix product of Triton's takes at least of each of its sizes."""
ROW_BYTES = 1 << 15
"""Bytes of the tile that a program keeps while it goes over others: of queries or keys of one head."""
MOST = 64
"""Rows of that tile at most: on an H100 128 were slower in all kernels, by 10 to 95 %."""


class Tiles(NamedTuple):
    """A program keeps ``own`` queries (or keys) of one head and goes over the others, ``other`` at a time."""

    block: int
    """The first columns of a head, a power of two."""
    tail: int
    """Columns beside them, a power of two or 0: a head of 72 takes 64 + 16 where one power of two would be 128."""
    own: int
    other: int
    warps: int
    stages: int
    """How many tiles are fetched ahead."""


HOPPER = 90
"""The compute capability, times 10, from which on products read their factors from shared memory."""


def tiles(width: int, element_size: int, own_keys: bool = False, capability: int = HOPPER) -> Tiles:
    """Choose tiles for heads of Y = ``width`` columns, at least 1, of ``element_size`` bytes.

    In bfloat16 they are the fastest of six to ten that were tried on an H100, at Y = 64, 72 and 84: square, but where a
    program keeps keys (``own_keys``) it holds two sums of heads' columns and meets half as many queries if these have a
    tail.  Before Hopper factors lie in registers, and of the same tiles in bfloat16 up to 3.9 kB a thread find none:
    there one side is half as long, at Y = 56, 64, 72 and 84 the longest that fits (compiled, not measured).
    """
    block, tail = _columns(width)
    columns = block + tail
    own = max(LEAST, min(MOST, _power_below(ROW_BYTES // (columns * element_size))))
    if element_size > 2:
        return Tiles(block, tail, own, max(LEAST, own // 2), 8, 2)
    if capability < HOPPER:
        half = max(LEAST, own // 2)
        return Tiles(block, tail, half, own, 4, 2) if own_keys and not tail else Tiles(block, tail, own, half, 4, 2)
    warps = 4 if columns <= 96 else 8
    if not own_keys:
        return Tiles(block, tail, own, own, warps, 3 if columns <= 96 else 2)
    return Tiles(block, tail, own, max(LEAST, own // 2) if tail else own, warps, 3 if tail else 2)


def _columns(width: int) -> tuple[int, int]:
    """Split the width into a power of two and a smaller one, if both are less than the next power of two."""
    whole = max(LEAST, _power_above(width))
    tail = max(LEAST, _power_above(width - whole // 2)) if whole > 2 * LEAST else whole
    return (whole // 2, tail) if whole // 2 + tail < whole else (whole, 0)


def _power_above(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _power_below(count: int) -> int:
    return 1 << (count.bit_length() - 1)
