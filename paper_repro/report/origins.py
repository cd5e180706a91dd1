"""Where each value of a record's config is set today: the file and line, and the axis or scale that sets it there.

Nothing is instantiated.  A value that today's files give otherwise than the record has it is told as such.
"""

import functools
from collections.abc import Mapping
from typing import Any

from paper_repro.artifacts.artifact import Artifact
from paper_repro.base import config as configs
from paper_repro.base import origins
from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import Key
from paper_repro.report.source import Use

MULTIPLE = object()
"""Stands for a value that is written as a multiple of another."""
CHANGED = "today {value!r}: {source}"


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return every value of a nested mapping by its dotted key; an empty mapping is a value."""
    if not isinstance(node, Mapping) or (not node and prefix):
        return {prefix: node}
    found: dict[str, Any] = {}
    for key, child in node.items():
        found |= leaves(child, f"{prefix}.{key}".removeprefix("."))
    return found


class Origins:
    """Finds origins; each point of an artifact is composed once."""

    def __init__(self) -> None:
        self._of_point = functools.lru_cache(maxsize=None)(_of_point)
        self._artifacts: dict[str, Artifact] = {}

    def of(self, config: Mapping[str, Any], use: Use) -> dict[str, str]:
        """Return the origin of each value of a config at its place in a table, by dotted key.

        None are returned for a floor, whose config is composed of its models', and where today's files have no such
        place any more.
        """
        artifact, place = use.result.artifact, use.place
        if artifact is None or "floor" in place:
            return {}
        key = tuple((axis, str(place.get(axis))) for axis in artifact.axes)
        if any(value not in artifact.axes[axis].values for axis, value in key):
            return {}
        self._artifacts[artifact.id] = artifact
        try:
            written, sources = self._of_point(_Named(artifact), use.result.scale.partition("+")[0], key)
        except UsageError:
            return {}
        found = {}
        for name, value in leaves(config).items():
            if name == "seed":
                found[name] = "the seed"
            elif name in sources:
                found[name] = _told(value, written.get(name), sources[name])
        return found


def _told(value: Any, written: Any, source: str) -> str:
    if isinstance(written, str) and "${" in written:
        return f"{written}, {source}"
    return source if written in (value, MULTIPLE) else CHANGED.format(value=written, source=source)


class _Named:
    """An artifact that a cache tells apart by its id."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    def __hash__(self) -> int:
        return hash(self.artifact.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and other.artifact.id == self.artifact.id


def _of_point(named: _Named, scale: str, key: Key) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a point as its files write them, and the source of each; of a multiple only the source."""
    artifact = named.artifact
    overrides = configs.parse_all(artifact.overrides(key, artifact.scale(scale)[1]))
    files = origins.composed(artifact.experiment, configs.chosen_groups(overrides))
    written = {name: one.value for name, one in files.items()}
    for item in overrides:
        if not configs.chooses(item):
            written |= leaves(item.value, item.key)
            if item.times:
                written[item.key] = MULTIPLE
    found = origins.origins(artifact.experiment, overrides, 0)
    return written, {name: source.replace(f"{origins.ROOT}/", "") for name, source in found.items()}
