"""The records that the repository has, found by a cell's id or, where the user's data is another or missing, by its
settings.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.derived import with_derived
from paper_repro.artifacts.plan import Plan
from paper_repro.base import identity
from paper_repro.base.files import read_regular
from paper_repro.cells import measurements
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import LIMIT_BYTES, Record, record_path

_TABLE_BYTES = 10_000_000
"""Above the size of any table that is published."""
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What a damaged or missing file raises where its content is read unchecked."""


@dataclass
class Committed:
    """Records of the reference, found by id or by settings."""

    root: Path
    plan: Plan

    def find(self, cell: PlannedCell) -> Record | None:
        artifact = self.plan.artifact
        record = None if cell.missing else result_of(self.root, cell, artifact)
        reads_files = bool(cell.missing) or cell.id != cell.settings
        if record is not None or not reads_files:
            return record
        for other in self._twins(cell.settings):
            if (record := result_of(self.root, replace(cell, id=other), artifact)) is not None:
                return record
        return None

    def _twins(self, settings: str) -> Iterator[str]:
        """Yield the ids of the records with these settings: first what the published table was made of, because
        reading all takes half a second.
        """
        yield from self.published.get(settings, [])
        yield from self.all.get(settings, [])

    @cached_property
    def published(self) -> dict[str, list[str]]:
        """The cells that the published table names, by their settings; none where no table can be read."""
        with contextlib.suppress(*_UNREADABLE):
            table = json.loads(read_regular(self.root / self.plan.folder / "table.json", _TABLE_BYTES))
            return self._by_settings(table["cells"])
        return {}

    @cached_property
    def all(self) -> dict[str, list[str]]:
        """All cells by their settings, the last first."""
        folder = self.root / "cells"
        return self._by_settings(sorted((path.parent.name for path in folder.glob("*/record.json")), reverse=True))

    def _by_settings(self, ids: Iterable[str]) -> dict[str, list[str]]:
        """Return ids of cells by what makes their weights, files left out, as their records tell it.

        These are not checked here, for few of them are asked for.
        """
        found: dict[str, list[str]] = {}
        for cell in ids:
            with contextlib.suppress(*_UNREADABLE):
                config = json.loads(read_regular(record_path(self.root, cell), LIMIT_BYTES))["config"]
                found.setdefault(identity.settings(config), []).append(cell)
        return found


def result_of(root: Path, cell: PlannedCell, artifact: Artifact) -> Record | None:
    """Return a cell's record with what its probes have measured and what follows from it."""
    found = measurements.find(root, cell)
    return None if found is None else with_derived(found.record, artifact.metrics)
