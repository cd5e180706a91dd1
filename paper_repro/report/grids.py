"""From the long rows of a table.json to a grid: one line for each place, one group of columns for each quantity."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paper_repro.artifacts.artifact import Artifact, Column, Metric
from paper_repro.artifacts.verdicts import NOT_RUN, OFF, REDUCED, REPRODUCED
from paper_repro.report.source import WHOSE, Kept, Result

ROW_KEYS = frozenset(
    (
        *("quantity", "verdict", "floor", "as_reference"),
        *(f"{whose}_{what}" for whose in WHOSE for what in ("mean", "std", "seeds")),
    )
)
"""What a row says beside its place."""
PAPER, REFERENCE, OURS, AGREES, VERDICT = "paper", "reference", "ours", "as reference", "verdict"
"""What a quantity's columns are; a table of somebody's own runs has the reference beside ours, and if they agree."""
SEED, FLOOR = "seed", "floor"

Place = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Quantity:
    """A metric or counted column with the kinds of number that the table has of it."""

    name: str
    spec: Metric | Column | None
    kinds: tuple[str, ...]

    @property
    def title(self) -> str:
        return self.name if self.spec is None else self.spec.title

    def text(self, value: float) -> str:
        """Write a number as the printed tables do."""
        return f"{value:.6g}" if self.spec is None else self.spec.text(value)

    def paper_text(self, mean: float, std: float | None) -> str:
        """Write a number of the paper, which is in the paper's own unit and digits."""
        if isinstance(self.spec, Column):
            return f"{mean:.{self.spec.digits}f}{self.spec.unit}"
        if std is not None:
            return f"{self.text(mean)} ± {self.text(std)}"
        return f"{mean:.10g}" if self.spec is None or self.spec.format == "f" else self.text(mean)


@dataclass(frozen=True)
class Entry:
    """One place of the grid."""

    text: str
    cells: tuple[str, ...] = ()
    """The ids of the records behind it, in the order of their seeds."""
    verdict: str = ""
    best: bool = False


@dataclass(frozen=True)
class Line:
    """One line of the grid."""

    labels: tuple[str, ...]
    entries: tuple[tuple[Entry, ...], ...]
    """For each quantity, one entry for each of its kinds."""
    cells: Mapping[int, tuple[str, ...]]
    """The ids of all cells of this line by seed (one each; of floors on several data one for each)."""
    floor: bool = False


@dataclass(frozen=True)
class Grid:
    axes: tuple[str, ...]
    """The titles of the columns that say the place."""
    quantities: tuple[Quantity, ...]
    lines: tuple[Line, ...]


def grid(result: Result, records: Mapping[str, Kept]) -> Grid:
    """Return the grid of a published table."""
    artifact, rows = result.artifact, result.document["rows"]
    axes = _axes(artifact, rows)
    lines: dict[tuple[Place, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        # Floors of one name on several data have rows of one place: the first that repeats a quantity begins a line.
        number, key = 0, (_place(row, axes), str(row.get(FLOOR, "")))
        while row["quantity"] in lines.get((key[0], f"{key[1]}#{number}"), {}):
            number += 1
        lines.setdefault((key[0], f"{key[1]}#{number}"), {})[row["quantity"]] = row
    quantities = tuple(_quantities(artifact, rows))
    found = [
        _line(result, records, quantities, dict(place), floor.rpartition("#")[0], of_line)
        for (place, floor), of_line in lines.items()
    ]
    titles = tuple(artifact.axes[axis].title if artifact and axis in artifact.axes else axis for axis in axes)
    return Grid(titles, quantities, tuple(_with_best(result, quantities, found, list(lines))))


def _axes(artifact: Artifact | None, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    there = dict.fromkeys(key for row in rows for key in row if key not in ROW_KEYS)
    known = [axis for axis in artifact.axes if axis in there] if artifact else []
    return tuple(dict.fromkeys([*known, *there]))


def _place(row: Mapping[str, Any], axes: Sequence[str]) -> Place:
    return tuple((axis, str(row.get(axis, ""))) for axis in axes)


def _quantities(artifact: Artifact | None, rows: Sequence[Mapping[str, Any]]) -> Iterator[Quantity]:
    there = dict.fromkeys(row["quantity"] for row in rows)
    has_reference = any(row.get("reference_mean") is not None for row in rows if FLOOR not in row)
    specs: Mapping[str, Metric | Column] = artifact.quantities if artifact else {}
    for name in [*(name for name in specs if name in there), *(name for name in there if name not in specs)]:
        spec, own = specs.get(name), [row for row in rows if row["quantity"] == name]
        printed = any(row.get("paper_mean") is not None for row in own)
        measured = not (isinstance(spec, Metric) and not spec.measured)
        judged = any(row.get("verdict") not in ("", NOT_RUN, None) for row in own)
        beside = measured and has_reference
        kinds = (PAPER,) * printed + (REFERENCE,) * beside + (OURS,) * measured + (AGREES,) * beside
        kinds += (VERDICT,) * (judged and printed)
        yield Quantity(name, spec, kinds)


def _line(
    result: Result,
    records: Mapping[str, Kept],
    quantities: Sequence[Quantity],
    place: Mapping[str, str],
    floor: str,
    rows: Mapping[str, Mapping[str, Any]],
) -> Line:
    cells = _cells(result, place, floor)
    if floor:
        cells = _behind(cells, records, result.artifact, rows)
    ids = tuple(cell for seed in sorted(cells) for cell in cells[seed])
    entries = tuple(tuple(_entries(one, rows.get(one.name), ids, records)) for one in quantities)
    return Line(_labels(result.artifact, place, floor), entries, cells, bool(floor))


def _cells(result: Result, place: Mapping[str, str], floor: str) -> dict[int, tuple[str, ...]]:
    """Return the cells of a place or of a floor by seed."""
    found: dict[int, tuple[str, ...]] = {}
    for cell, at in result.document["cells"].items():
        there = at.get(FLOOR) == floor if floor else FLOOR not in at and _is_at(at, place)
        if there and isinstance(at.get(SEED), int):
            found[at[SEED]] = (*found.get(at[SEED], ()), cell)
    return found


def _is_at(at: Mapping[str, Any], place: Mapping[str, str]) -> bool:
    return all(str(at.get(axis, "")) == value for axis, value in place.items())


def _behind(
    cells: Mapping[int, tuple[str, ...]],
    records: Mapping[str, Kept],
    artifact: Artifact | None,
    rows: Mapping[str, Mapping[str, Any]],
) -> dict[int, tuple[str, ...]]:
    """Return, of a floor's cells on several data, those whose mean is the one that the line says; all where none is."""
    families: dict[str, dict[int, tuple[str, ...]]] = {}
    for seed, ids in cells.items():
        for cell in ids:
            config = records[cell].record.config if cell in records else {}
            kind = json.dumps(_without_seeds(config), sort_keys=True)
            families.setdefault(kind, {})[seed] = (*families.get(kind, {}).get(seed, ()), cell)
    for family in families.values():
        if all(_has_mean(name, row, family, records, artifact) for name, row in rows.items()):
            return family
    return dict(cells)


def _has_mean(
    name: str,
    row: Mapping[str, Any],
    family: Mapping[int, tuple[str, ...]],
    records: Mapping[str, Kept],
    artifact: Artifact | None,
) -> bool:
    kept = [records[cell].record for ids in family.values() for cell in ids if cell in records]
    values = [record.metrics[name] for record in kept if name in record.metrics]
    factor = artifact.metrics[name].factor if artifact and name in artifact.metrics else 1.0
    wanted = row.get("own_mean")
    return bool(values) and wanted is not None and abs(statistics.fmean(values) / factor - wanted) <= 1e-6 * abs(wanted)


def _without_seeds(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_seeds(value) for key, value in node.items() if key != SEED}
    return node


def _labels(artifact: Artifact | None, place: Mapping[str, str], floor: str) -> tuple[str, ...]:
    """Return the labels of a place; the first axis that a floor leaves open carries its name."""
    found = []
    for axis, value in place.items():
        values = artifact.axes[axis].values if artifact and axis in artifact.axes else {}
        found.append(values[value].label if value in values else value)
    if floor:
        name = artifact.floors[floor].label if artifact and floor in artifact.floors else floor
        place_of_it = found.index("") if "" in found else 0
        found[place_of_it] = f"Floor: {name}" + (f" ({found[place_of_it]})" if found[place_of_it] else "")
    return tuple(found)


def _entries(
    quantity: Quantity, row: Mapping[str, Any] | None, cells: tuple[str, ...], records: Mapping[str, Kept]
) -> Iterator[Entry]:
    for kind in quantity.kinds:
        if row is None:
            yield Entry("")
        elif kind == PAPER:
            mean, std = row.get("paper_mean"), row.get("paper_std")
            yield Entry("" if mean is None else quantity.paper_text(mean, std))
        elif kind == VERDICT:
            yield Entry(_verdict(quantity, row), verdict=str(row.get("verdict") or ""))
        elif kind == AGREES:
            yield Entry(str(row.get("as_reference") or ""))
        elif kind == REFERENCE:
            yield Entry(_number(quantity, row, "reference") or NOT_RUN)
        else:
            yield Entry(_own(quantity, row, cells, records), cells)


def _own(quantity: Quantity, row: Mapping[str, Any], cells: tuple[str, ...], records: Mapping[str, Kept]) -> str:
    """Write our number; where there is none, why."""
    if text := _number(quantity, row, "own"):
        return text
    kept = [records[cell].record for cell in cells if cell in records]
    lacks = [record.unavailable[quantity.name] for record in kept if quantity.name in record.unavailable]
    if lacks:
        return f"n/a: {lacks[0].partition(':')[0]}"
    return "" if kept and isinstance(quantity.spec, Metric) else NOT_RUN


def _number(quantity: Quantity, row: Mapping[str, Any], whose: str) -> str:
    """Write a mean with its spread over seeds; empty where there is none."""
    mean, std = row.get(f"{whose}_mean"), row.get(f"{whose}_std")
    if mean is None:
        return ""
    if std is None or (FLOOR in row and quantity.text(std) == quantity.text(0.0)):
        return quantity.text(mean)
    return f"{quantity.text(mean)} ± {quantity.text(std)}"


def _verdict(quantity: Quantity, row: Mapping[str, Any]) -> str:
    """Write a verdict with the change against the paper's number; a reduced scale is told without it."""
    word, own, paper = str(row.get("verdict") or ""), row.get("own_mean"), row.get("paper_mean")
    if word in ("", NOT_RUN) or own is None or not paper:
        return "" if word == NOT_RUN else word
    if word == REDUCED:
        return word
    if isinstance(quantity.spec, Column):
        if word == REPRODUCED:  # every printed digit
            return word
        own /= quantity.spec.factor
    percent = 100.0 * (own - paper) / abs(paper)
    change = f"{percent:+.0f} %" if abs(percent) >= 1 else f"{percent:+.2g} %"
    return f"{word} {change}" if word == OFF else f"{word} ({change})"


def _with_best(
    result: Result, quantities: Sequence[Quantity], lines: Sequence[Line], keys: Sequence[tuple[Place, str]]
) -> Iterator[Line]:
    """Mark the best number of each group of ``best_within``, ties as printed included, if it is the best of several."""
    artifact = result.artifact
    within = artifact.best_within if artifact else []
    best: dict[tuple[int, int, tuple[str, ...]], list[tuple[float, int]]] = {}
    for number, line in enumerate(lines):
        group = tuple(dict(keys[number][0]).get(axis, "") for axis in within)
        for place, quantity in enumerate(quantities if within and not line.floor else ()):
            sign = {"lower": 1.0, "higher": -1.0}.get(getattr(quantity.spec, "direction", "none"))
            for kind, entry in enumerate(line.entries[place] if sign else ()):
                value = _leading(entry.text)
                if value is not None and quantity.kinds[kind] not in (VERDICT, AGREES):
                    best.setdefault((place, kind, group), []).append(((sign or 1.0) * value, number))
    marked = {
        (number, place, kind)
        for (place, kind, _), members in best.items()
        for value, number in members
        if value == min(members)[0] and len(members) > 1
    }
    for number, line in enumerate(lines):
        entries = tuple(
            tuple(
                Entry(entry.text, entry.cells, entry.verdict, (number, place, kind) in marked)
                for kind, entry in enumerate(of_quantity)
            )
            for place, of_quantity in enumerate(line.entries)
        )
        yield Line(line.labels, entries, line.cells, line.floor)


def _leading(text: str) -> float | None:
    try:
        return float(text.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return None
