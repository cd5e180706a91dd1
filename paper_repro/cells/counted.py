"""Keeps what cells were counted to cost, so that a second look at a plan needs neither torch nor a minute.

A count follows from the config, the data files that it names, our code and torch; all of them enter what it is kept
under.  Losing the file, or what another process wrote into it, costs a second count and nothing else.
"""

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from paper_repro.base import configs, identity
from paper_repro.base.configs import ROOMS, own_packages, without_seeds
from paper_repro.base.files import CorruptFileError, read_with_digest, write_with_digest
from paper_repro.cells.planned import PlannedCell, file_hashes
from paper_repro.cells.tasks import Cost

COUNTING = (*(room for room in ROOMS if room != "tests"), "kernels", "evaluation", "cells", "base")
"""The parts of the package that take part in a count."""
PLACES = ("cache", "data_root", "data_workers", "workers", "logger")
"""Keys of ``machine`` that no count reads."""


class Counts:
    """The costs of shapes of cells, and the configs that were checked, in a file of a runs folder.

    Args:
        runs: the folder of records; the file lies in its ``cache``.
    """

    def __init__(self, runs: Path) -> None:
        self._path = runs / "cache" / "costs.json"
        self._stamp = _stamp()
        self._costs: dict[str, dict[str, int] | None] = {}
        self._checked: set[str] = set()
        self._new = False
        with contextlib.suppress(OSError, CorruptFileError, ValueError):
            content = json.loads(read_with_digest(self._path))
            if content["stamp"] == self._stamp:
                self._costs, self._checked = content["costs"], set(content["checked"])

    def has_cost(self, cell: PlannedCell) -> bool:
        """Return whether a cell of its shape was counted, and its own config checked."""
        return _key(cell, shape=True) in self._costs and self.was_checked(cell)

    def was_checked(self, cell: PlannedCell) -> bool:
        """Return whether its config was built before, whatever the seed."""
        return _key(cell) in self._checked

    def cost(self, cell: PlannedCell) -> Cost | None:
        """Return the cost of its shape; None where its task counts nothing.

        Raises:
            KeyError: it was never counted.
        """
        found = self._costs[_key(cell, shape=True)]
        return None if found is None else Cost(**found)

    def keep(self, cell: PlannedCell, cost: Cost | None) -> None:
        """Note the cost of a cell's shape."""
        self._costs[_key(cell, shape=True)] = None if cost is None else asdict(cost)
        self.keep_checked(cell)

    def keep_checked(self, cell: PlannedCell) -> None:
        """Note that a config can be built."""
        self._checked.add(_key(cell))
        self._new = True

    def write(self) -> None:
        """Write what is new; where the disk refuses, it is counted again another time."""
        if self._new:
            content = {"stamp": self._stamp, "costs": self._costs, "checked": sorted(self._checked)}
            with contextlib.suppress(OSError):
                write_with_digest(self._path, json.dumps(content).encode())
            self._new = False


def shape(cell: PlannedCell) -> str:
    """Return what cells that cost the same have in common: all but the machine, every seed, and what may vary within a
    stack.
    """
    return identity.fingerprint(_rest(cell, _varying(cell)))


def _key(cell: PlannedCell, shape: bool = False) -> str:
    machine: Mapping[str, Any] = cell.config.get(identity.MACHINE) or {}
    read = {key: value for key, value in machine.items() if key not in PLACES}
    rest = _rest(cell, _varying(cell) if shape else [])
    return identity.fingerprint({"config": rest, "machine": read, "files": file_hashes(cell.config)})


def _rest(cell: PlannedCell, left_out: Sequence[str]) -> Any:
    return without_seeds(configs.without(cell.config, [identity.MACHINE, *left_out]))


def _varying(cell: PlannedCell) -> list[str]:
    stack: Mapping[str, Any] = (cell.config.get(identity.MACHINE) or {}).get("stack") or {}
    return list(stack.get("over", ()))


def _stamp() -> str:
    """Return the hash of the code that counts."""
    found = hashlib.sha256(metadata.version("torch").encode())
    for path in _code():
        found.update(f"\0{path.name}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[: identity.LENGTH]


def _code() -> Iterator[Path]:
    for home in sys.modules["paper_repro"].__path__:
        for room in COUNTING:
            yield from sorted(Path(home, room).rglob("*.py"))
    for folder in own_packages().values():
        yield from sorted(folder.rglob("*.py"))
