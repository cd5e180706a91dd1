"""Checks that constructors make of their arguments; each returns the value or raises ValueError with its name."""

import math
from collections.abc import Iterable

from paper_repro.base.errors import nearest


def at_least(name: str, value: int, least: int = 1) -> int:
    """Return a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def positive(name: str, value: float) -> float:
    """Return a positive finite number."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")
    return float(value)


def one_of(name: str, value: str, valid: Iterable[str]) -> str:
    """Return one of the ``valid`` words."""
    if value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(valid)}, got {value!r}{nearest(str(value), valid)}")
    return value
