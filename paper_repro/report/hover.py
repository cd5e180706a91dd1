"""Data on hover: what each marker, bar and line of a figure shows, read off its axes and looked up in figure.csv.

Matplotlib's SVG says where a mark lies, in points; the ticks say which number lies where.  From both follows the number
that a mark shows, and from it the row of figure.csv that was drawn there.  Where no row has these numbers (a mean over
seeds, a fit) the numbers alone are told, and where an axis has no numbers, its nearest label.
"""

import bisect
import csv
import dataclasses
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paper_repro.report.drawing import Element, children, vertices, words

MOST_MARKS, MOST_OF_LINE = 3_000, 400
LOOSE, TIGHT = 2e-4, 2e-6
"""How far, as a share of an axis, a number in figure.csv may lie from where a mark is: if both its numbers stand in one
row, and if one does.
"""
_NUMBER = re.compile(r"(-?[\d,]*\.?\d+(?:e-?\d+)?)\s?([kMGBTmµ%]?)")
_FACTORS = {"": 1.0, "%": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "m": 1e-3, "µ": 1e-6}
_LONGEST = 60


class Mark(NamedTuple):
    """A place in the figure, in its own units, and what it shows."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Scale:
    """One axis of a panel: the number at a position is a + b position, or ten to that power."""

    title: str
    labels: tuple[tuple[float, str], ...]
    a: float = math.nan
    b: float = math.nan
    logarithmic: bool = False
    length: float = 1.0
    """Between the outermost ticks, in points."""
    ticks: tuple[float, ...] = ()
    """The positions of all ticks, those without a label, too."""

    @property
    def numeric(self) -> bool:
        return not math.isnan(self.b)

    def value(self, position: float) -> float:
        plain = self.a + self.b * position
        return 10.0**plain if self.logarithmic else plain

    def near(self, position: float, share: float = LOOSE) -> tuple[float, float]:
        """Return the least and the largest number that lie there."""
        ends = sorted(self.value(position + sign * share * self.length) for sign in (-1, 1))
        return ends[0], ends[1]

    def label(self, position: float) -> str:
        return min(self.labels, key=lambda one: abs(one[0] - position))[1] if self.labels else ""


class Rows:
    """The rows of a figure.csv, found by the numbers in them."""

    def __init__(self, content: bytes) -> None:
        self.rows = [
            {name: value for name, value in row.items() if name and value and len(value) <= _LONGEST}
            for row in csv.DictReader(io.StringIO(content.decode(errors="replace")))
        ]
        self.numbers: list[dict[str, float]] = []
        columns: dict[str, list[tuple[float, int]]] = {}
        for number, row in enumerate(self.rows):
            self.numbers.append({name: value for name, text in row.items() if (value := _float(text)) is not None})
            for name, value in self.numbers[-1].items():
                columns.setdefault(name, []).append((value, number))
        self.columns = {name: sorted(found) for name, found in columns.items()}

    def with_number(self, ends: tuple[float, float]) -> dict[int, str]:
        """Return the rows that have a number between two, each with a column where it stands."""
        found: dict[int, str] = {}
        for name, column in self.columns.items():
            for place in range(bisect.bisect_left(column, (ends[0], -1)), len(column)):
                if column[place][0] > ends[1]:
                    break
                found[column[place][1]] = name
        return found

    def at(self, x: Scale, y: Scale, place: tuple[float, float]) -> Mapping[str, str] | None:
        """Return the one row that a mark shows; None where none or several have its numbers."""
        if not y.numeric:
            return None
        up = self.with_number(y.near(place[1]))
        if x.numeric:
            low, high = x.near(place[0])
            found = [row for row, name in up.items() if self._has_other(row, name, low, high)]
        else:
            label = x.label(place[0]).lower()
            found = [row for row in up if label in {value.lower() for value in self.rows[row].values()}]
        found = found or list(self.with_number(y.near(place[1], TIGHT)))
        return self.rows[found[0]] if len(found) == 1 else None

    def _has_other(self, row: int, name: str, low: float, high: float) -> bool:
        return any(low <= value <= high for other, value in self.numbers[row].items() if other != name)


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def marks(root: Element, table: bytes) -> list[Mark]:
    """Return what can be hovered over in a figure, at most ``MOST_MARKS``.

    Args:
        root: as ``drawing.read`` returns it.
        table: the content of figure.csv; empty where there is none.
    """
    rows, found, known = Rows(table), dict[tuple[float, float], Mark](), list[Scale]()
    for panel in (node for node in root.iter("g") if str(node.get("id", "")).startswith("axes_")):
        box = _box(panel)
        x, y = (_scale(axis, kind, known) for axis, kind in zip(_axes(panel), ("x", "y"), strict=True))
        if x is None or y is None or box is None:
            continue
        known += [x, y]
        title = next((words(node) for node in children(panel, "text_") if _height(node) < box.top), "")
        for place in _places(panel, box):
            key = (round(place[0], 1), round(place[1], 1))
            if key not in found and len(found) < MOST_MARKS:
                found[key] = Mark(*place, _told(rows, x, y, place, title))
    return [mark for mark in found.values() if mark.text]


def _told(rows: Rows, x: Scale, y: Scale, place: tuple[float, float], title: str) -> str:
    row = rows.at(x, y, place)
    if row is not None:
        return "\n".join(f"{name}: {value}" for name, value in row.items())
    lines = [title] if 0 < len(title) <= _LONGEST else []
    for scale, position, name in ((x, place[0], "across"), (y, place[1], "value")):
        value = f"{scale.value(position):.4g}" if scale.numeric else scale.label(position)
        lines += [f"{scale.title or name}: {value}"] if value else []
    return "\n".join(lines) if x.numeric or y.numeric else ""


def _axes(panel: Element) -> tuple[Element | None, Element | None]:
    found = [*children(panel, "matplotlib.axis_"), None, None]
    return found[0], found[1]


def _height(node: Element) -> float:
    """Return where a text stands; below everything if that cannot be read."""
    for text in node.iter("text"):
        if "y" in text.attrib:
            return float(text.attrib["y"])
        found = vertices(text.get("transform", "").partition(")")[0])
        return found[0][1] if found else math.inf
    return math.inf


def _scale(axis: Element | None, kind: str, known: Sequence[Scale]) -> Scale | None:
    """Return an axis' scale; one whose ticks have no labels has that of an earlier panel with the same ticks."""
    if axis is None:
        return None
    labels, titles, ticks, factor = [], [], [], 1.0
    for group in axis:
        name, text = str(group.get("id", "")), words(group)
        if name.startswith(f"{kind}tick_"):
            position = _tick(group, kind)
            ticks += [] if position is None else [position]
            labels += [] if position is None or not text else [(position, text)]
        elif text and (offset := re.fullmatch(r"1e[-+]?\d+", text)):
            factor = float(offset[0])
        elif text:
            titles.append(text)
    scale = dataclasses.replace(_fitted(" ".join(titles), sorted(labels), factor), ticks=tuple(sorted(ticks)))
    alike = [one for one in known if one.numeric and one.ticks == scale.ticks and len(scale.ticks) > 1]
    return dataclasses.replace(alike[0], title=scale.title or alike[0].title) if alike and not labels else scale


def _tick(group: Element, kind: str) -> float | None:
    for mark in group.iter("use"):
        return float(mark.get(kind, "nan"))
    for path in group.iter("path"):
        if ends := vertices(path.get("d", "")):
            return ends[0]["xy".index(kind)]
    return None


def _fitted(title: str, labels: Sequence[tuple[float, str]], factor: float) -> Scale:
    """Return the scale that the numbers of the ticks lie on: even, logarithmic, or none."""
    plain = Scale(title, tuple(labels))
    values = [_value(text) for _, text in labels]
    if len(labels) < 2 or any(value is None for value in values):
        return plain
    numbers = [factor * value for value in values if value is not None]
    positions = [position for position, _ in labels]
    length = positions[-1] - positions[0]
    fits = []
    for logarithmic in (False, True):
        if logarithmic and min(numbers) <= 0:
            continue
        heights = [math.log10(number) for number in numbers] if logarithmic else numbers
        b = (heights[-1] - heights[0]) / length if length else 0.0
        a = heights[0] - b * positions[0]
        span = abs(heights[-1] - heights[0])
        if span:
            miss = max(abs(a + b * at - height) for at, height in zip(positions, heights, strict=True)) / span
            fits.append((miss, logarithmic, Scale(title, tuple(labels), a, b, logarithmic, length)))
    miss, _, best = min(fits, key=lambda fit: fit[:2], default=(1.0, False, plain))
    return best if miss < 0.01 else plain


def _value(text: str) -> float | None:
    found = _NUMBER.fullmatch(text)
    return None if found is None else float(found[1].replace(",", "")) * _FACTORS[found[2]]


class Box(NamedTuple):
    """The rectangle that a panel draws in."""

    left: float
    right: float
    top: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        return self.left - 1 <= x <= self.right + 1 and self.top - 1 <= y <= self.bottom + 1


def _box(panel: Element) -> Box | None:
    """Return a panel's rectangle, which is the first patch that it draws."""
    for path in (path for node in children(panel, "patch_") for path in node.iter("path")):
        corners = vertices(path.get("d", ""))
        xs, ys = [x for x, _ in corners], [y for _, y in corners]
        return Box(min(xs), max(xs), min(ys), max(ys)) if corners else None
    return None


def _places(panel: Element, box: Box) -> Iterator[tuple[float, float]]:
    """Yield where a panel's markers, bars and vertices of lines without markers lie."""
    others = ("matplotlib.", "legend", "text", "table")
    for node in [node for node in panel if not str(node.get("id", "")).startswith(others)][1:]:
        name = str(node.get("id", ""))
        found = [(float(one.get("x", "nan")), float(one.get("y", "nan"))) for one in node.iter("use")]
        if not found and name.startswith("patch_"):
            found = _bar(node)
        elif not found and name.startswith("line2d_"):
            found = [place for path in node.iter("path") for place in vertices(path.get("d", ""))]
            found = [] if len(found) > MOST_OF_LINE or _is_rule(found, box) else found
        yield from (place for place in found if box.holds(*place))


def _is_rule(found: Sequence[tuple[float, float]], box: Box) -> bool:
    """Return whether a line marks one number across the whole panel, or is upright, as an error bar."""
    if len(found) != 2:
        return False
    return found[0][0] == found[1][0] or abs(found[0][0] - found[1][0]) > 0.98 * (box.right - box.left)


def _bar(node: Element) -> list[tuple[float, float]]:
    """Return the end of a bar; nothing of a patch that is none."""
    for path in node.iter("path"):
        corners = vertices(path.get("d", ""))
        filled = "fill: none" not in path.get("style", "") and path.get("clip-path")
        if filled and len(corners) in (4, 5) and len({round(x, 3) for x, _ in corners}) == 2:
            xs, ys = [x for x, _ in corners], [y for _, y in corners]
            return [((min(xs) + max(xs)) / 2, min(ys))]
    return []
