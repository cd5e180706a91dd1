"""One cell before it is run: its place in an artifact, its resolved config and the identity that follows from both."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paper_repro.base import configs, identity
from paper_repro.base.files import absent, find_data
from paper_repro.base.identity import MACHINE, data_hash, other_text
from paper_repro.cells.machine_section import check_machine
from paper_repro.cells.training_section import check_training

_log = logging.getLogger(__name__)
Key = tuple[tuple[str, str], ...]
"""The place of a cell in its artifact: (axis, value) pairs in the artifact's order of axes."""


@dataclass(frozen=True)
class PlannedCell:
    """One cell: its place in the artifact, its config and its identity."""

    key: Key
    seed: int
    config: dict[str, Any] = field(repr=False)
    settings: str
    """The hash of what makes its weights, but for the content of the files that ``data.files`` names."""
    id: str
    """The hash with the files; the two are equal where no files are read (``base.identity``)."""
    missing: str = ""
    """What data is absent, and how to get it; such a cell cannot be run."""

    @property
    def name(self) -> str:
        """The values of its axes and its seed, for people."""
        return " ".join([*(value for _, value in self.key), f"seed {self.seed}"])

    @cached_property
    def probes(self) -> dict[str, str]:
        """The id of each probe that is to measure the weights, by its name."""
        return identity.probes(self.config)


def single(experiment: str, overrides: Sequence[str], seed: int) -> PlannedCell:
    """Return one cell outside any artifact."""
    return plan_cell((), seed, configs.compose(experiment, overrides, seed))


def plan_cell(key: Key, seed: int, config: dict[str, Any]) -> PlannedCell:
    """Give a resolved config its identity, or say which data it lacks.

    Raises:
        UsageError: the machine section asks for what no machine can give, or the training section for no training.
    """
    check_machine(config)
    check_training(config)
    settings, hashes = identity.settings(config), dict[str, str]()
    for role, found in file_hashes(config).items():
        if found is None:
            command, name = identity.reader_of(config).get("prepare") or "", identity.files_of(config)[role]
            root = (config.get(MACHINE) or {}).get("data_root")
            return PlannedCell(key, seed, config, settings, settings, absent(name, root, command))
        hashes[role] = found
    return PlannedCell(key, seed, config, settings, identity.with_files(settings, hashes))


def file_hashes(config: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the ``data_hash`` of each file that a config's ``data.files`` names, by role; None where it is absent."""
    root = (config.get(MACHINE) or {}).get("data_root")
    found = {role: find_data(name, root) for role, name in sorted(identity.files_of(config).items())}
    return {role: None if path is None or not path.is_file() else _hash_once(path) for role, path in found.items()}


_HASHES: dict[tuple[str, int, int], str] = {}


def _hash_once(path: Path) -> str:
    status = path.stat()
    known = (str(path.resolve()), status.st_size, status.st_mtime_ns)
    if known not in _HASHES:
        _HASHES[known] = data_hash(path)
        if told := other_text(path):
            _log.warning("%s", told)
    return _HASHES[known]
