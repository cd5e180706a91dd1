"""One cell before it is run: its place in an artifact, its resolved config and the identity that follows from both."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paper_repro.base import config as configs
from paper_repro.base.config import MACHINE
from paper_repro.base.data_files import absent, find_data
from paper_repro.base.files import sha256_of_file
from paper_repro.cells.machine_section import check_machine

Key = tuple[tuple[str, str], ...]
"""The place of a cell in its artifact: (axis, value) pairs in the artifact's order of axes."""


@dataclass(frozen=True)
class PlannedCell:
    """One cell: its place in the artifact, its config and its identity.

    ``id`` is the hash of the config without its machine section and of the files the config reads (``data.files``);
    ``recipe`` leaves the files out.  They are equal where no files are read.
    """

    key: Key
    seed: int
    config: dict[str, Any] = field(repr=False)
    recipe: str
    id: str
    missing: str = ""
    """What data is absent, and how to get it; such a cell cannot be run."""


def single(experiment: str, overrides: Sequence[str], seed: int) -> PlannedCell:
    """One cell outside any artifact."""
    return plan_cell((), seed, configs.compose(experiment, overrides, seed))


def plan_cell(key: Key, seed: int, config: dict[str, Any]) -> PlannedCell:
    """Give a resolved config its identity, or say which data it lacks.

    Raises:
        UsageError: the machine section asks for what no machine can give.
    """
    check_machine(config)
    recipe = configs.recipe(config)
    data = config.get("data") or {}
    wanted: Mapping[str, str] = data.get("files") or {}
    if not wanted:
        return PlannedCell(key, seed, config, recipe, recipe)
    root = config.get(MACHINE, {}).get("data_root")
    hashes = {}
    for role, name in sorted(wanted.items()):
        path = find_data(name, root)
        if path is None or not path.is_file():
            return PlannedCell(key, seed, config, recipe, recipe, absent(name, root, data.get("prepare") or ""))
        hashes[role] = _hash_once(path)
    identity = hashlib.sha256(f"{recipe}/{configs.canonical_json(hashes)}".encode()).hexdigest()
    return PlannedCell(key, seed, config, recipe, identity[: configs.IDENTITY_LENGTH])


_HASHES: dict[tuple[str, int, int], str] = {}


def _hash_once(path: Path) -> str:
    status = path.stat()
    known = (str(path.resolve()), status.st_size, status.st_mtime_ns)
    if known not in _HASHES:
        _HASHES[known] = sha256_of_file(path)
    return _HASHES[known]
