"""Records as one tidy table, and from an id or a path to a cell's record."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.base import config as configs
from paper_repro.base import identity
from paper_repro.base.command_line import RESULTS, default_runs
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.files import CorruptFileError
from paper_repro.cells import measurements, records
from paper_repro.cells.records import Record, record_path
from paper_repro.cells.tasks import FINISHED
from paper_repro.tables import plan as plans
from paper_repro.tables import spec, view
from paper_repro.tables.plan import Plan
from paper_repro.tables.spec import Artifact

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]
FIRST = ("artifact", "artifacts", "scale")
LAST = ("seed", "metric", "value", "unit", "status", "cell", "num_parameters", "seconds", "device", "commit")
SHORTEST = 4
"""How many characters of an id have to be given."""
_ABSENT = object()


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
    status, cell (its id), num_parameters, seconds (of training), device, commit.  A metric that a cell lacks, because
    it diverged or could not be measured, has the value NaN; a cell that was not run has no row.

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
    rows, between = list[Row](), ["artifact", "scale"] if artifacts else ["artifacts"]
    for name in artifacts:
        plan = with_seeds_of_table(plans.make(spec.load(name), scale, None, overrides), root)
        between += plan.artifact.axes
        units = _units(plan.artifact)
        for one in placed(plan, root):
            head = {"artifact": plan.artifact.id, "scale": plan.scale_name, **one.place}
            rows += ({**head, **row} for row in _rows(one.record, keys, units, list(units)))
    if not artifacts:
        rows += _all_rows(root, keys)
    for key in keys:
        if rows and all(row[key] is _ABSENT for row in rows):
            found = (records.find(root, cell) for cell in dict.fromkeys(row["cell"] for row in rows))
            known = {name for record in found if record is not None for name in _keys(record.config)}
            raise UsageError(f"keys={list(keys)}: the config of no record has '{key}'{nearest(key, known)}")
    rows = [{name: None if value is _ABSENT else value for name, value in row.items()} for row in rows]
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
    """Return the plan with the seeds of its table below ``root``, where a user asked for others than the scale's."""
    with suppress(OSError, ValueError, KeyError, TypeError):  # no table, or a damaged one: those of the scale
        seeds = json.loads((root / plan.folder / "table.json").read_text(encoding="utf-8"))["seeds"]
        if list(seeds) != list(plan.seeds):
            return plans.make(plan.artifact, plan.scale_name, seeds, plan.overrides)
    return plan


def placed(plan: Plan, root: Path) -> list[Placed]:
    """Return the records below ``root`` of an artifact's cells; places in numbers on axes whose values all are."""
    numeric: dict[str, dict[str, int | float]] = {}
    for axis, one in plan.artifact.axes.items():
        found = {word: value.number for word, value in one.values.items() if value.number is not None}
        numeric[axis] = found if len(found) == len(one.values) else {}
    return [
        Placed({axis: numeric[axis].get(value, value) for axis, value in point.key}, record)
        for point in view.build(plan, root, None).points.values()
        for _, record in sorted(point.own.items())
    ]


def _all_rows(root: Path, keys: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of every record, with the artifacts whose tables below ``root`` show its cell."""
    shown: dict[str, dict[str, None]] = {}
    for path in sorted(root.glob("*/*/*/table.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            table = json.loads(path.read_text(encoding="utf-8"))
            for cell in table["cells"]:
                shown.setdefault(cell, {})[table["artifact"]] = None
    names = {*spec.find()} & {one for own in shown.values() for one in own}
    units = {name: _units(spec.load(name)) for name in names}
    for cell in cells_of(root):
        if (found := records.find(root, cell)) is not None:
            own = shown.get(cell, {})
            measured = {metric: unit for name in own for metric, unit in units.get(name, {}).items()}
            for row in _rows(measurements.whole(root, found), keys, measured, []):
                yield {"artifacts": " ".join(own), **row}


def _units(artifact: Artifact) -> dict[str, str]:
    return {name: metric.unit for name, metric in artifact.metrics.items() if metric.measured}


def _rows(record: Record, keys: Sequence[str], units: Mapping[str, str], wanted: Sequence[str]) -> Iterator[Row]:
    """Yield a record's metrics; those that it should have and lacks have the value NaN."""
    expected = wanted if record.status != FINISHED else []
    head: Row = {}
    for key in keys:
        head[key] = _ABSENT
        with suppress(KeyError):
            head[key] = configs.lookup(record.config, key)
    for name in dict.fromkeys([*record.metrics, *record.unavailable, *expected]) or [""]:
        yield {
            **head,
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


def _keys(section: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the keys of a config at every depth, as ``optimizer.lr``."""
    for name, value in section.items():
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{above}{name}.")


def cells_of(root: Path) -> list[str]:
    """Return the ids of the cells below ``root`` that have a record."""
    return sorted(path.parent.name for path in (root / "cells").glob("*/record.json"))


def find_record(word: str | Path, roots: Sequence[Path]) -> tuple[Path, Record]:
    """Return the folder of a cell and its record, with the metrics of probes that measured later.

    Args:
        word: the folder of a cell, a file in it, the cell's id, or at least four characters with which the id of one
            cell alone begins.
        roots: runs folders, the first that has the cell counts.

    Raises:
        UsageError: there is no such cell (with the nearest id), several begin so, or its record is damaged.
    """
    path = Path(word).expanduser()
    folder = path.parent if path.is_file() else path
    if not (folder / "record.json").is_file():
        if folder.is_dir() and path.name != str(word):
            raise UsageError(f"{word}: no record.json in it, expected the folder of a cell, runs/cells/<cell>")
        folder = _folder(str(word), roots)
    try:
        record = records.read(folder / "record.json")
    except (OSError, CorruptFileError) as error:
        raise UsageError(str(error)) from error
    inside = folder.parent.name == "cells" and folder.name == record.cell
    return folder, measurements.whole(folder.parent.parent, record) if inside else record


def trained(checkpoint: Path) -> tuple[Path, Record]:
    """Return the folder of a trained cell and its record: of a folder, a file in it, or a word for ``find_record``."""
    if checkpoint.exists() or len(checkpoint.parts) != 1:
        return records.finished(checkpoint)
    return records.finished(find_record(checkpoint, [default_runs()])[0])


def _folder(word: str, roots: Sequence[Path]) -> Path:
    for root in roots:
        if "/" not in word and record_path(root, word).is_file():
            return record_path(root, word).parent
    known = {cell: root for root in reversed(roots) for cell in cells_of(root)}
    begin = [cell for cell in known if cell.startswith(word)] if len(word) >= SHORTEST else []
    if len(begin) == 1:
        return record_path(known[begin[0]], begin[0]).parent
    where = " and ".join(str(root / "cells") for root in roots)
    if begin:
        raise UsageError(f"{word}: {len(begin)} cells begin so, {', '.join(sorted(begin)[:5])}; give more of the id")
    published = _published(word) if len(word) >= SHORTEST else ""
    cutoff = 0.3 if len(word) < identity.LENGTH else 0.8  # of whole ids any two are alike by chance
    close = [] if published else difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    near = f" (did you mean '{close[0]}'?)" if close else ""
    raise UsageError(f"{word}: neither the folder of a cell nor the id of one in {where}{near}{published}")


def _published(word: str) -> str:
    """Say where a cell that begins so is published, and what makes its weights; nothing of other words."""
    for path in sorted(RESULTS.glob("*/*/*/table.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged table says nothing
            table = json.loads(path.read_text(encoding="utf-8"))
            if any(cell.startswith(word) for cell in table["cells"]):
                command = f"reproduce.py {table['artifact']} scale={table['scale']}"
                return f"; its record is published with {table['artifact']}, weights are not: run {command} to train it"
    return ""
