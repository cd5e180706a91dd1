"""Turns the long rows of a table.json into a grid: a line for each place, columns for each quantity."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paper_repro.artifacts.artifact import Column, Metric
from paper_repro.artifacts.verdicts import NOT_RUN, OFF, REDUCED, REPRODUCED
from paper_repro.site.source import Kept, Result

ROW_KEYS = {"quantity", "verdict", "floor", "as_reference"}
ROW_KEYS |= {f"{whose}_{what}" for whose in ("paper", "own", "reference") for what in ("mean", "std", "seeds")}
"""What a row says beside its place."""
PAPER, REFERENCE, OURS, AGREES, VERDICT = "paper", "reference", "ours", "as reference", "verdict"
"""The columns of a quantity; a table of a user's own runs has the reference beside ours, and whether they agree."""
SEED, FLOOR = "seed", "floor"

Row = Mapping[str, Any]
Cells = dict[int, tuple[str, ...]]
"""Ids of cells by seed: one each, of a floor on several data one for each."""


@dataclass(frozen=True)
class Quantity:
    """A metric or counted column with the kinds of number that the table has of it."""

    name: str
    spec: Metric | Column | None
    kinds: tuple[str, ...]

    @property
    def title(self) -> str:
        return self.name if self.spec is None else self.spec.title

    @property
    def is_measured(self) -> bool:
        return OURS in self.kinds

    @property
    def unit(self) -> str:
        return self.spec.unit if isinstance(self.spec, Metric) else ""

    @property
    def is_setting(self) -> bool:
        """Whether it is a counted column that the paper does not print."""
        return isinstance(self.spec, Column) and PAPER not in self.kinds

    def text(self, value: float) -> str:
        """Write a number as the printed tables do."""
        return f"{value:.6g}" if self.spec is None else self.spec.text(value)

    def paper_text(self, mean: float, std: float | None) -> str:
        """Write a number of the paper in the paper's own unit and digits."""
        if isinstance(self.spec, Column):
            return f"{mean:.{self.spec.digits}f}{self.spec.unit}"
        if std is not None:
            return f"{self.text(mean)} ± {self.text(std)}"
        return f"{mean:.10g}" if self.spec is None or self.spec.format == "f" else self.text(mean)

    def mean_text(self, row: Row, whose: str) -> str:
        """Write a mean with its spread over seeds; empty where there is none."""
        mean, std = row.get(f"{whose}_mean"), row.get(f"{whose}_std")
        if mean is None:
            return ""
        if std is None or (FLOOR in row and self.text(std) == self.text(0.0)):
            return self.text(mean)
        return f"{self.text(mean)} ± {self.text(std)}"


@dataclass
class Entry:
    """One number or verdict of the grid."""

    quantity: Quantity
    kind: str
    text: str = ""
    cells: tuple[str, ...] = ()
    """The records behind the number, in the order of their seeds."""
    verdict: str = ""
    best: bool = False


@dataclass(frozen=True)
class Line:
    """One line of the grid."""

    labels: list[str]
    entries: list[Entry]
    cells: Cells
    floor: bool


@dataclass(frozen=True)
class Grid:
    axes: list[str]
    """Titles of the columns that say the place."""
    quantities: list[Quantity]
    lines: list[Line]
    remark: str
    """The verdict on all numbers, where it is one and the same."""


def grid(result: Result, records: Mapping[str, Kept]) -> Grid:
    """Return the grid of a published table."""
    artifact, rows = result.artifact, result.document["rows"]
    there = dict.fromkeys(key for row in rows for key in row if key not in ROW_KEYS)
    axes = list(dict.fromkeys([*(axis for axis in artifact.axes if axis in there), *there] if artifact else there))
    judged = {row.get("verdict") for row in rows} - {"", None, NOT_RUN, REDUCED} != set()
    quantities = list(_quantities(result, judged))
    groups: dict[tuple[tuple[str, ...], str, int], dict[str, Row]] = {}
    for row in rows:
        # Floors of one name on several data have rows of one place: the first that repeats a quantity begins a line.
        place, number = (tuple(str(row.get(axis, "")) for axis in axes), str(row.get(FLOOR, ""))), 0
        while row["quantity"] in groups.get((*place, number), {}):
            number += 1
        groups.setdefault((*place, number), {})[row["quantity"]] = row
    lines = [
        _line(result, records, quantities, dict(zip(axes, values, strict=True)), floor, of_line)
        for (values, floor, _), of_line in groups.items()
    ]
    within = artifact.best_within if artifact else []
    best: dict[Any, list[tuple[float, Entry]]] = {}
    for (values, floor, _), line in zip(groups, lines, strict=True):
        group = tuple(value for axis, value in zip(axes, values, strict=True) if axis in within)
        for entry in line.entries if within and not floor else ():
            sign = {"lower": 1.0, "higher": -1.0}.get(getattr(entry.quantity.spec, "direction", ""))
            value = _leading(entry.text)
            if sign and value is not None and entry.kind not in (VERDICT, AGREES):
                best.setdefault((entry.quantity.name, entry.kind, group), []).append((sign * value, entry))
    for members in best.values():
        least = min(value for value, _ in members)
        for value, entry in members:
            entry.best = value == least and len(members) > 1
    titles = [artifact.axes[axis].title if artifact and axis in artifact.axes else axis for axis in axes]
    is_small = not judged and any(row.get("verdict") == REDUCED for row in rows)
    remark = f"All numbers of ours: {REDUCED}. The paper's stand beside them and do not judge them." if is_small else ""
    return Grid(titles, quantities, lines, remark)


def _quantities(result: Result, judged: bool) -> Iterator[Quantity]:
    """Yield the quantities: what is measured first, then counts and settings."""
    rows = result.document["rows"]
    specs = result.artifact.quantities if result.artifact else {}
    there = dict.fromkeys(row["quantity"] for row in rows)
    has_reference = any(row.get("reference_mean") is not None for row in rows if FLOOR not in row)
    found = []
    for name in [*(name for name in specs if name in there), *(name for name in there if name not in specs)]:
        spec, own = specs.get(name), [row for row in rows if row["quantity"] == name]
        printed = any(row.get("paper_mean") is not None for row in own)
        measured = not (isinstance(spec, Metric) and not spec.measured)
        told = judged and printed and any(row.get("verdict") not in ("", NOT_RUN, None) for row in own)
        kinds = (PAPER,) * printed + (REFERENCE,) * (measured and has_reference) + (OURS,) * measured
        found.append(Quantity(name, spec, kinds + (AGREES,) * (measured and has_reference) + (VERDICT,) * told))
    yield from sorted(found, key=lambda one: (isinstance(one.spec, Column), one.is_setting))


def _line(
    result: Result,
    records: Mapping[str, Kept],
    quantities: Sequence[Quantity],
    place: Mapping[str, str],
    floor: str,
    rows: Mapping[str, Row],
) -> Line:
    cells: Cells = {}
    for cell, at in result.document["cells"].items():
        is_here = at.get(FLOOR) == floor if floor else all(str(at.get(axis, "")) == place[axis] for axis in place)
        if is_here and (floor or FLOOR not in at) and isinstance(at.get(SEED), int):
            cells[at[SEED]] = (*cells.get(at[SEED], ()), cell)
    if floor:
        cells = _behind(result, cells, records, rows)
    ids = tuple(cell for seed in sorted(cells) for cell in cells[seed])
    entries = [_entry(one, kind, rows.get(one.name), ids, records) for one in quantities for kind in one.kinds]
    return Line(_labels(result, place, floor), entries, cells, bool(floor))


def _behind(result: Result, cells: Cells, records: Mapping[str, Kept], rows: Mapping[str, Row]) -> Cells:
    """Return the cells of a floor on several data whose mean the line shows; all cells where no group has it."""
    metrics = result.artifact.metrics if result.artifact else {}
    groups: dict[str, Cells] = {}
    for seed, ids in cells.items():
        for cell in ids:
            config = records[cell].record.config if cell in records else {}
            group = groups.setdefault(json.dumps(_without_seeds(config), sort_keys=True), {})
            group[seed] = (*group.get(seed, ()), cell)

    def has_mean(group: Cells, name: str, wanted: float | None) -> bool:
        kept = [records[cell].record.metrics for ids in group.values() for cell in ids if cell in records]
        values = [found[name] for found in kept if name in found]
        factor = metrics[name].factor if name in metrics else 1.0
        return (
            wanted is not None
            and values != []
            and abs(statistics.fmean(values) / factor - wanted) <= 1e-6 * abs(wanted)
        )

    fitting = (one for one in groups.values() if all(has_mean(one, name, rows[name].get("own_mean")) for name in rows))
    return next(fitting, cells)


def _without_seeds(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_seeds(value) for key, value in node.items() if key != SEED}
    return node


def _labels(result: Result, place: Mapping[str, str], floor: str) -> list[str]:
    """Return the labels of a place; the first axis that a floor leaves open carries its name."""
    axes, floors = (result.artifact.axes, result.artifact.floors) if result.artifact else ({}, {})
    known = {axis: axes[axis].values if axis in axes else {} for axis in place}
    found = [known[axis][value].label if value in known[axis] else value for axis, value in place.items()]
    if floor:
        at = found.index("") if "" in found else 0
        name = floors[floor].label if floor in floors else floor
        found[at] = f"Floor: {name}" + (f" ({found[at]})" if found[at] else "")
    return found


def _entry(
    quantity: Quantity, kind: str, row: Row | None, cells: tuple[str, ...], records: Mapping[str, Kept]
) -> Entry:
    found = Entry(quantity, kind)
    if row is None:
        return found
    if kind == PAPER and row.get("paper_mean") is not None:
        found.text = quantity.paper_text(row["paper_mean"], row.get("paper_std"))
    elif kind == VERDICT:
        found.text, found.verdict = _verdict(quantity, row), str(row.get("verdict") or "")
    elif kind == AGREES:
        found.text = str(row.get("as_reference") or "")
    elif kind == REFERENCE:
        found.text = quantity.mean_text(row, "reference") or NOT_RUN
    elif kind == OURS:
        kept = [records[cell].record for cell in cells if cell in records]
        lacks = [record.unavailable[quantity.name] for record in kept if quantity.name in record.unavailable]
        absent = "" if kept and isinstance(quantity.spec, Metric) else NOT_RUN
        why = f"n/a: {lacks[0].partition(':')[0]}" if lacks else absent
        found.text, found.cells = quantity.mean_text(row, "own") or why, cells
    return found


def _verdict(quantity: Quantity, row: Row) -> str:
    """Write a verdict with the change against the paper's number, where it is judged."""
    word, own, paper = str(row.get("verdict") or ""), row.get("own_mean"), row.get("paper_mean")
    if word in ("", NOT_RUN) or own is None or not paper:
        return "" if word == NOT_RUN else word
    counted = isinstance(quantity.spec, Column)
    if word == REDUCED or (counted and word == REPRODUCED):  # every printed digit
        return word
    if isinstance(quantity.spec, Column):
        own /= quantity.spec.factor
    percent = 100.0 * (own - paper) / abs(paper)
    change = f"{percent:+.0f} %" if abs(percent) >= 1 else f"{percent:+.2g} %"
    return f"{word} {change}" if word == OFF else f"{word} ({change})"


def _leading(text: str) -> float | None:
    try:
        return float(text.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return None
