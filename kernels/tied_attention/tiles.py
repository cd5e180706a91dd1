"""How the fused kernel lays heads, queries and keys on programs, by the registers that they take.

Legend: H heads, Y head width.
"""

from typing import NamedTuple

ACCUMULATOR, SCORES = 1 << 15, 1 << 13
"""Bytes of operands whose results and scores, in float32, a program holds: 64 and 16 of 256 kB of registers in
bfloat16, half of that in float32, whose products take more."""
READ = 1 << 15
"""Bytes that a program reads at once of arrays of heads; the next ones are fetched meanwhile."""
LEAST, MOST = 16, 64
"""Queries or keys of a tile: what a matrix product takes at least, and where larger ones stop to pay."""
UNSHARED = 4
"""Heads of a program that share nothing: each has warps of its own, and of fewer Triton 3.6 makes poor use."""


class Tiles(NamedTuple):
    group: int
    """Heads of a program, a power of two; there may be fewer."""
    block: int
    """The next power of two of the head width."""
    own: int
    """Queries of a program that goes over keys, keys of one that goes over queries."""
    other: int
    """Keys, or queries, that these meet at once."""
    warps: int


def tiles(heads: int, width: int, shared: bool, element_size: int, reads: int) -> Tiles:
    """Choose tiles for H heads of Y, of so many bytes an element, and so many arrays that are read at once.

    Heads that share a score (``shared``) stay together, all of them where their results fit in the registers.
    """
    block = max(LEAST, _power_of_two(width))
    results, scores, read = (count // element_size for count in (ACCUMULATOR, SCORES, READ))
    group = min(_power_of_two(heads), max(1, results // (LEAST * block)) if shared else UNSHARED)
    own = _bounded(min(results // (group * block), LEAST * group))
    other = _bounded(min(scores // (group * own), read // (group * block * reads)))
    return Tiles(group, block, own, other, 8 if group * own * block > results // 2 else 4)


def _bounded(count: int) -> int:
    return min(max(count, LEAST), MOST)


def _power_of_two(count: int) -> int:
    """Return the next one."""
    return 1 << (count - 1).bit_length()
