"""Data on hover: what each marker, bar and line of a figure shows, read off its axes and looked up in figure.csv.

Matplotlib's SVG says where a mark lies, in points; the ticks say which number lies where.  From both follows the number
that a mark shows, and from it the row of figure.csv that was drawn there.  Where no row has these numbers (a mean over
seeds, a fit) the numbers alone are told, and where an axis has no numbers, its nearest label.  Pictures, heat maps and
texts have no such axes; the id of their panel says which rows they show, see ``artifacts.ties``.
"""

import bisect
import csv
import dataclasses
import io
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paper_repro.artifacts import ties
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
    reach: float = 0.0
    """How far from the place it still shows that: half the diagonal of a picture; 0 for a marker."""


class Place(NamedTuple):
    """Where a mark lies, and at which positions on the horizontal axis its numbers do: the ends of a step of a
    histogram are two, of everything else it is the mark's own.
    """

    x: float
    y: float
    at: tuple[float, ...]


@dataclass(frozen=True)
class Scale:
    """One axis of a panel: the number at a position is a + b position, or ten to that power.

    An axis that is logarithmic on both sides of zero is neither: it has ``knots``.
    """

    title: str
    labels: tuple[tuple[float, str], ...]
    a: float = math.nan
    b: float = math.nan
    logarithmic: bool = False
    length: float = 1.0
    """Between the outermost ticks, in points."""
    ticks: tuple[float, ...] = ()
    """The positions of all ticks, those without a label, too."""
    knots: tuple[tuple[float, float], ...] = ()
    """Positions, ascending, and the numbers there; between two it is even, or logarithmic if both have one sign."""

    @property
    def numeric(self) -> bool:
        return bool(self.knots) or not math.isnan(self.b)

    def value(self, position: float) -> float:
        if self.knots:
            return self._between(position)
        plain = self.a + self.b * position
        return 10.0**plain if self.logarithmic else plain

    def _between(self, position: float) -> float:
        upper = bisect.bisect([at for at, _ in self.knots], position)
        (start, low), (end, high) = self.knots[max(0, min(upper, len(self.knots) - 1) - 1) :][:2]
        share = (position - start) / (end - start)
        return low * (high / low) ** share if low * high > 0 else low + share * (high - low)

    def near(self, position: float, share: float = LOOSE) -> tuple[float, float]:
        """Return the least and the largest number that lie there."""
        ends = sorted(self.value(position + sign * share * self.length) for sign in (-1, 1))
        return ends[0], ends[1]

    def text(self, position: float) -> str:
        """Write what lies there: a number in four digits, or the nearest label."""
        if not self.numeric:
            return self.label(position)
        low, high = self.near(position, TIGHT)
        return "0" if low <= 0.0 <= high else f"{self.value(position):.4g}"

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

    def at(self, x: Scale, y: Scale, place: Place) -> Mapping[str, str] | None:
        """Return the one row that a mark shows; None where none or several have its numbers."""
        if not y.numeric:
            return None
        up = self.with_number(y.near(place.y))
        if x.numeric:
            ends = [x.near(position) for position in place.at]
            found = [row for row, name in up.items() if all(self._has_other(row, name, *pair) for pair in ends)]
        else:
            label = x.label(place.x).lower()
            found = [row for row in up if label in {value.lower() for value in self.rows[row].values()}]
        found = found or list(self.with_number(y.near(place.y, TIGHT)))
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
    """Return what can be hovered over in a figure, at most ``MOST_MARKS``, of each panel the same share.

    Args:
        root: as ``drawing.read`` returns it.
        table: the content of figure.csv; empty where there is none.
    """
    rows, known, found = Rows(table), list[Scale](), list[list[tuple[Place, _Panel]]]()
    tied: list[Mark] = []
    for node in (node for node in root.iter("g") if str(node.get("id", "")).startswith("axes_")):
        if (tie := ties.read(node.attrib)) is not None:
            tied += _tied(node, tie, rows)
            continue
        box = _box(node)
        x, y = (_scale(axis, kind, known) for axis, kind in zip(_axes(node), ("x", "y"), strict=True))
        if x is None or y is None or box is None:
            continue
        known += [x, y]
        title = next((words(text) for text in children(node, "text_") if _height(text) < box.top), "")
        panel = _Panel(x, y, title)
        unlike = {(round(place.x, 1), round(place.y, 1)): place for place in reversed([*_places(node, box)])}
        found.append([(place, panel) for place in reversed(unlike.values())])
    every = math.ceil(sum(map(len, found)) / MOST_MARKS)
    told = [Mark(place.x, place.y, _told(rows, panel, place)) for own in found for place, panel in own[:: every or 1]]
    return [mark for mark in (*told, *tied) if mark.text][:MOST_MARKS]


class _Panel(NamedTuple):
    x: Scale
    y: Scale
    title: str


def _told(rows: Rows, panel: _Panel, place: Place) -> str:
    row = rows.at(panel.x, panel.y, place)
    if row is not None:
        return _row(row)
    lines = [panel.title] if 0 < len(panel.title) <= _LONGEST else []
    for scale, position, name in ((panel.x, place.x, "across"), (panel.y, place.y, "value")):
        value = scale.text(position)
        lines += [f"{scale.title or name}: {value}"] if value else []
    return "\n".join(lines) if panel.x.numeric or panel.y.numeric else ""


def _row(row: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in row.items())


def _tied(node: Element, tie: ties.Tie, rows: Rows) -> Iterator[Mark]:
    """Yield a mark in the middle of each part of a panel that says which rows it shows; one of a text has one part."""
    box = _box(node) or _title_box(node)
    if box is None:
        return
    lines = math.ceil(len(tie.rows) / tie.columns)
    width, height = (box.right - box.left) / tie.columns, (box.bottom - box.top) / lines
    for part, row in enumerate(tie.rows):
        if row is not None and row < len(rows.rows):
            line, column = divmod(part, tie.columns)
            x, y = box.left + (column + 0.5) * width, box.top + (line + 0.5) * height
            yield Mark(x, y, _row(rows.rows[row]), math.hypot(width, height) / 2)


def _title_box(node: Element) -> "Box | None":
    """Return a square around the beginning of a panel's highest line of text."""
    found = [(y, x) for text in children(node, "text_") for x, y in _spots(text)]
    return Box(min(found)[1], min(found)[1] + 60, min(found)[0] - 10, min(found)[0] + 50) if found else None


def _axes(panel: Element) -> tuple[Element | None, Element | None]:
    found = [*children(panel, "matplotlib.axis_"), None, None]
    return found[0], found[1]


def _height(node: Element) -> float:
    """Return where a text stands; below everything if that cannot be read."""
    return next((y for _, y in _spots(node)), math.inf)


def _spots(node: Element) -> Iterator[tuple[float, float]]:
    """Yield where the lines of a text begin, as far as that can be read."""
    for text in node.iter("text"):
        if "y" in text.attrib:
            yield float(text.get("x", "0")), float(text.attrib["y"])
        else:
            yield from vertices(text.get("transform", "").partition(")")[0])[:1]


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
    if miss < 0.01:
        return best
    rising = sorted(numbers) in (numbers, numbers[::-1]) and len({*numbers}) == len(numbers)
    if rising and min(numbers) < 0 < max(numbers) and 0.0 in numbers:
        return dataclasses.replace(plain, length=length, knots=tuple(zip(positions, numbers, strict=True)))
    return plain


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


def _places(panel: Element, box: Box) -> Iterator[Place]:
    """Yield where a panel's markers, bars, steps and vertices of lines without markers lie."""
    others = ("matplotlib.", "legend", "text", "table")
    for node in [node for node in panel if not str(node.get("id", "")).startswith(others)][1:]:
        name = str(node.get("id", ""))
        found = [(float(one.get("x", "nan")), float(one.get("y", "nan"))) for one in node.iter("use")]
        steps: list[Place] = []
        if not found and name.startswith("patch_"):
            found, steps = _bar(node), _steps(node)
        elif not found and name.startswith("line2d_"):
            found = [place for path in node.iter("path") for place in vertices(path.get("d", ""))]
            found = [] if len(found) > MOST_OF_LINE or _is_rule(found, box) else found
        places = (*(Place(x, y, (x,)) for x, y in found), *steps)
        yield from (place for place in places if box.holds(place.x, place.y))


def _steps(node: Element) -> list[Place]:
    """Return the middles of the level parts of a histogram's outline; nothing of another patch.

    Matplotlib leaves out what is smaller than a pixel, so a few parts of an outline may be slanted.
    """
    found = []
    for path in node.iter("path"):
        for piece in path.get("d", "").split("M")[1:] if "fill: none" in path.get("style", "") else ():
            pairs = list(itertools.pairwise(vertices(piece)))
            level = [(left, right) for left, right in pairs if left[1] == right[1] and left[0] != right[0]]
            upright = sum(left[0] == right[0] for left, right in pairs)
            if path.get("clip-path") and len(level) + upright > 0.9 * len(pairs):
                found += [Place((a + b) / 2, y, (a, b)) for (a, y), (b, _) in level]
    return found


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
