"""Records as one tidy table: a row for each metric of each cell."""

import json
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import catalogue, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.plan import Plan
from paper_repro.base import config as configs
from paper_repro.base.command_line import RESULTS
from paper_repro.base.errors import UsageError, nearest
from paper_repro.cells import measurements, records
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED
from paper_repro.results.lookup import cells_of

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]
FIRST = ("artifact", "artifacts", "scale")
_ABSENT = object()
LAST = ("seed", "metric", "value", "unit", "status", "cell", "num_parameters", "seconds", "device", "commit")


def frame(
    *artifacts: str,
    scale: str = "cpu",
    runs: str | Path | None = None,
    keys: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> "pandas.DataFrame":
    """Return one row for each metric of each cell that has a record.

    With artifacts there is a column for each of their axes, with the words of the YAML file, or numbers where every
    value of the axis is one.  Without, all records of the folder are given, and the column ``artifacts`` names the
    tables there that show the cell.  Further columns: seed, metric, value, unit (empty where no artifact gives one),
    status, cell (its id), num_parameters, seconds (of training), device, commit.  A metric that a cell lacks,
    because it diverged or could not be measured, has the value NaN; a cell that was not run has no row.

    Args:
        artifacts: for example "cem/table3"; none: every record.
        scale: of the artifacts.
        runs: the runs folder to read; None: the committed results of the repository.
        keys: of the config, for example "optimizer.lr"; each becomes a column, None where a config has no such key.
        overrides: those of an altered run, as given to reproduce.py.

    Raises:
        UsageError: an unknown artifact or scale, a key that no record's config has, or a folder without records.
    """
    import pandas

    root = RESULTS if runs is None else Path(runs).expanduser()
    if not (root / "cells").is_dir():
        raise UsageError(f"{root}: no folder cells/ in it, expected a runs folder; give runs=DIR")
    if taken := sorted({*keys} & {*FIRST, *LAST}):
        raise UsageError(f"keys={list(keys)}: {taken[0]} is a column already; leave it out")
    if overrides and not artifacts:
        raise UsageError(f"overrides={list(overrides)}: they belong to an artifact; name one")
    rows: list[Row] = []
    between = ["artifact", "scale"] if artifacts else ["artifacts"]
    for name in artifacts:
        plan = with_seeds_of_table(plans.make(catalogue.load(name), scale, None, overrides), root)
        between += plan.artifact.axes
        rows += _rows_of(plan, root, keys)
    if not artifacts:
        rows += _all_rows(root, keys)
    _check_keys(rows, root, keys)
    between += [name for row in rows for name in row]
    columns = dict.fromkeys(name for name in FIRST if name in between)
    columns |= dict.fromkeys(name for name in between if name not in (*FIRST, *LAST, *keys))
    return pandas.DataFrame(rows, columns=[*columns, *keys, *LAST])


@dataclass(frozen=True)
class Placed:
    """A cell's record at its place in an artifact."""

    place: dict[str, str | int | float]
    record: Record


def with_seeds_of_table(plan: Plan, root: Path) -> Plan:
    """Return the plan with the seeds of its table below ``root``: the user may have asked for other seeds than the
    scale's.
    """
    try:
        seeds = json.loads((root / plan.folder / "table.json").read_text(encoding="utf-8"))["seeds"]
        return plans.make(plan.artifact, plan.scale_name, seeds, plan.overrides)
    except (OSError, ValueError, KeyError, TypeError):  # no table, or a damaged one: those of the scale
        return plan


def placed(plan: Plan, root: Path) -> list[Placed]:
    """Return the records below ``root`` of an artifact's cells, further seeds of planned looks included."""
    plan = plans.with_looks(plan, [root / plan.folder])
    numeric = _numeric(plan.artifact)
    return [
        Placed({axis: numeric.get(axis, {}).get(value, value) for axis, value in point.key}, record)
        for point in views.build(plan, root, None).points.values()
        for _, record in sorted(point.own.items())
    ]


def _rows_of(plan: Plan, root: Path, keys: Sequence[str]) -> Iterator[Row]:
    measured = _units(plan.artifact)
    for one in placed(plan, root):
        head = {"artifact": plan.artifact.id, "scale": plan.scale_name, **one.place}
        for row in _rows(one.record, keys, measured, list(measured)):
            yield {**head, **row}


def _all_rows(root: Path, keys: Sequence[str]) -> Iterator[Row]:
    shown = _shown(root)
    known = catalogue.find()
    units = {name: _units(catalogue.load(name)) for name in {*known} & {one for own in shown.values() for one in own}}
    for cell in cells_of(root):
        found = records.find(root, cell)
        if found is None:
            continue
        own = shown.get(cell, [])
        measured = ChainMap(*(units[name] for name in own if name in units))
        for row in _rows(measurements.whole(root, found), keys, measured, []):
            yield {"artifacts": " ".join(own), **row}


def _units(artifact: Artifact) -> dict[str, str]:
    return {name: metric.unit for name, metric in artifact.metrics.items() if metric.measured}


def _rows(record: Record, keys: Sequence[str], units: Mapping[str, str], wanted: Sequence[str]) -> Iterator[Row]:
    """Yield a record's metrics; those that it should have and lacks have the value NaN."""
    expected = wanted if record.status != FINISHED else []
    names = [*record.metrics, *(name for name in (*record.unavailable, *expected) if name not in record.metrics)]
    for name in dict.fromkeys(names or [""]):
        yield {
            **{key: _looked_up(record, key) for key in keys},
            "seed": record.seed,
            "metric": name,
            "value": record.metrics.get(name, float("nan")),
            "unit": units.get(name, ""),
            "status": record.status,
            "cell": record.cell,
            "num_parameters": record.parameters,
            "seconds": record.seconds,
            "device": record.provenance.get("device"),
            "commit": record.provenance.get("commit"),
        }


def _looked_up(record: Record, key: str) -> Any:
    try:
        return configs.lookup(record.config, key)
    except KeyError:
        return _ABSENT


def _check_keys(rows: Sequence[Row], root: Path, keys: Sequence[str]) -> None:
    """Put None in the place of what a config lacks.

    Raises:
        UsageError: no config has a key.
    """
    for key in keys:
        if rows and all(row[key] is _ABSENT for row in rows):
            found = (records.find(root, cell) for cell in dict.fromkeys(row["cell"] for row in rows))
            known = {name for record in found if record is not None for name in _keys(record.config)}
            raise UsageError(f"keys={list(keys)}: the config of no record has '{key}'{nearest(key, known)}")
        for row in rows:
            row[key] = None if row[key] is _ABSENT else row[key]


def _keys(section: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the keys of a config at every depth, as ``optimizer.lr``."""
    for name, value in section.items():
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{above}{name}.")


def _numeric(artifact: Artifact) -> dict[str, dict[str, int | float]]:
    """Return the numbers of the axes whose values are all numbers."""
    found = {axis: {word: value.number for word, value in spec.values.items()} for axis, spec in artifact.axes.items()}
    return {
        axis: {word: number for word, number in own.items() if number is not None}
        for axis, own in found.items()
        if None not in own.values()
    }


def _shown(root: Path) -> dict[str, list[str]]:
    """Return the artifacts whose tables below ``root`` show a cell, by the cell's id."""
    found: dict[str, dict[str, None]] = {}
    for path in sorted(root.glob("*/*/*/table.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            table = json.loads(path.read_text(encoding="utf-8"))
            for cell in table["cells"]:
                found.setdefault(cell, {})[table["artifact"]] = None
    return {cell: list(own) for cell, own in found.items()}
