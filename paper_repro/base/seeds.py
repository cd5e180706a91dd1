"""Seeds derived from words and numbers, the same on every machine and in every process."""

import hashlib
from collections.abc import Mapping
from typing import Any

LARGEST = 2**63 - 1
"""The largest seed that a record can hold."""


def mix(*parts: int | str) -> int:
    """Return a 63-bit seed for the stream that ``parts`` name, for example ``mix(seed, "batch", epoch)``.

    Streams of different names are independent for all practical purposes, so nothing has to be drawn in order: step t
    of a resumed run sees what step t of an uninterrupted run saw.
    """
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def without_seeds(node: Any) -> Any:
    """Return a part of a config without the keys ``seed`` at any depth."""
    if isinstance(node, Mapping):
        return {key: without_seeds(value) for key, value in node.items() if key != "seed"}
    return [without_seeds(item) for item in node] if isinstance(node, list | tuple) else node
