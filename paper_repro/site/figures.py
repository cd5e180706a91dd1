"""Figures for a page: the published SVG without scripts and outside addresses, and the numbers behind its marks.

The numbers are rows of figure.csv. A panel of pictures names its rows in the SVG. For other panels, the ticks tell
where each number of figure.csv lies on the axes; a mark shows the row that lies where it is, and none if no row does.
"""

import csv
import io
import itertools
import math
import re
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from paper_repro.artifacts import ties

Element = ElementTree.Element
Point = tuple[float, float]
Scale = Callable[[float], float]
Mark = tuple[float, float, str]
SHAPES = ("path", "rect", "circle", "line", "polyline", "polygon", "ellipse")
KEPT = frozenset(("svg", "g", "use", "defs", "clipPath", "text", "tspan", "image", *SHAPES))
"""The elements of an SVG that a page shows."""
INSIDE = ("#", "data:image/png;base64,")
"""How an address begins that leads nowhere else."""
SANS = re.compile(r"font-family: 'DejaVu Sans',[^;\"]*;? ?")
NUMBER = re.compile(r"(-?[\d,]*\.?\d+(?:e-?\d+)?)\s?([kMGBTmµ%]?)")
POWER = re.compile(r"(-?)10(-?\d+)")
FACTORS = {"": 1.0, "%": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "m": 1e-3, "µ": 1e-6}
NEAR, EXACT = 0.1, 0.003
"""Points between a mark and its row: of both numbers, and of one number that only this row has there."""
ALONE = "alone"
MOST_MARKS, MOST_OF_LINE, MOST_ALIKE, LONGEST = 3_000, 400, 3, 60


class Drawing(NamedTuple):
    """A figure as a page shows it."""

    svg: str
    width: float
    has_pictures: bool
    rows: Sequence[Mapping[str, str]]
    """The rows of figure.csv."""
    marks: Sequence[Sequence[Any]]
    """Place, text and reach of each mark that shows a row."""


def drawing(svg: bytes, table: bytes, label: str) -> Drawing:
    """Return a published figure for a page.

    Raises:
        ValueError: the file is no SVG.
    """
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from error
    if _plain(root.tag) != "svg" or not root.get("viewBox"):
        raise ValueError("no svg element with a viewBox")
    _clean(root)
    found = csv.DictReader(io.StringIO(table.decode(errors="replace")), restkey="", restval="")
    rows = [{name: str(value) for name, value in row.items() if name} for row in found]
    marks = [[round(x, 1), round(y, 1), text, round(reach)] for x, y, text, reach in _marks(root, rows)]
    width = _float(root.get("width", "").removesuffix("pt")) or 500.0
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": label}
    has_pictures = next(root.iter("image"), None) is not None
    return Drawing(ElementTree.tostring(root, encoding="unicode"), width, has_pictures, rows, marks)


def _plain(name: object) -> str:
    return str(name).rpartition("}")[2]


def _clean(node: Element) -> None:
    """Drop names of namespaces, elements that draw nothing, handlers, outside addresses and white space."""
    node.tag = _plain(node.tag)
    attributes = {_plain(name): value for name, value in node.attrib.items()}
    node.attrib.clear()
    for name, value in attributes.items():
        outside = name == "href" and not value.startswith(INSIDE)
        if not (name.startswith("on") or outside or "url(" in value.replace("url(#", "")):
            node.set(name, SANS.sub("", value) if name == "style" else " ".join(value.split()))
    if node.tag not in ("text", "tspan"):
        node.text = None
    for child in list(node):
        if _plain(child.tag) not in KEPT:
            node.remove(child)
            continue
        _clean(child)
        if node.tag not in ("text", "tspan"):
            child.tail = None


class Axis:
    """A scale of an axis, even or logarithmic, which tells where a number lies; or an axis of labels."""

    def __init__(self, labels: Sequence[tuple[float, str]], scale: Scale | None = None, factor: float = 1.0) -> None:
        self.labels, self.scale, self.miss = labels, scale, 0.0
        self.places: dict[float, float] = {}
        if scale is not None:
            values = [scale(factor * (_value(text) or 0.0)) for _, text in labels]
            (self.start, _), (end, _) = labels[0], labels[-1]
            self.low, self.slope = values[0], (end - self.start) / (values[-1] - values[0] or math.inf)
            places = [self.start + self.slope * (value - self.low) for value in values]
            misses = [abs(place - at) for place, (at, _) in zip(places, labels, strict=True)]
            self.miss = max(misses) / abs(end - self.start or math.inf)

    def place(self, value: float) -> float:
        """Return where a number lies; not a number where the axis has none."""
        if self.scale is None or (self.scale is math.log and value <= 0):
            return math.nan
        if value not in self.places:
            self.places[value] = self.start + self.slope * (self.scale(value) - self.low)
        return self.places[value]

    def label(self, position: float) -> str:
        return min(self.labels, key=lambda one: abs(one[0] - position), default=(0.0, ""))[1].lower()


def _axes(node: Element, kind: str, known: dict[tuple[float, ...], list[Axis]]) -> list[Axis]:
    """Return the scales that an axis may have by its ticks: two ticks may be even or logarithmic."""
    labels, ticks, factor = [], [], 1.0
    for group in node:
        text, use = _words(group), next(group.iter("use"), None)
        if str(group.get("id", "")).startswith(f"{kind}tick_") and use is not None:
            ticks.append(float(use.get(kind, "nan")))
            labels += [(ticks[-1], text)] if text else []
        elif re.fullmatch(r"1e-?\d+", text):
            factor = float(text)
    values = [value for _, text in labels if (value := _value(text)) is not None]
    if not labels and tuple(ticks) in known:  # a panel that shares the axis of another
        return known[tuple(ticks)]
    scales: list[Scale] = [float, math.log] if values and min(values) > 0 else [float]
    numeric = [Axis(labels, scale, factor) for scale in scales if len(values) == len(labels) > 1]
    known[tuple(ticks)] = [axis for axis in numeric if axis.miss < 0.001] or [Axis(labels)]
    return known[tuple(ticks)]


def _words(node: Element) -> str:
    """Return the text of a group; of a power of ten, which is set in parts, ``1e-2``."""
    found = []
    for text in node.iter("text"):
        joined = " ".join("".join(text.itertext()).split()).replace("−", "-")
        power = POWER.fullmatch(joined.replace(" ", "")) if text.find("tspan") is not None else None
        found.append(f"{power[1]}1e{power[2]}" if power else joined)
    return " ".join(found)


def _value(text: str) -> float | None:
    found = NUMBER.fullmatch(text)
    return None if found is None else float(found[1].replace(",", "")) * FACTORS[found[2]]


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Row(NamedTuple):
    text: str
    words: frozenset[str]
    numbers: Mapping[str, float]


def _row(row: Mapping[str, str]) -> Row:
    values = {name: value.replace("\n", "\\n") for name, value in row.items() if value and len(value) <= LONGEST}
    numbers = {name: number for name, value in values.items() if (number := _float(value)) is not None}
    text = "\n".join(f"{name}: {value}" for name, value in values.items())
    return Row(text, frozenset(value.lower() for value in values.values()), numbers)


def _means(rows: Sequence[Mapping[str, str]]) -> Iterator[Row]:
    """Yield the means over seeds; columns whose values are those of every seed say the place and are not averaged."""
    of_seeds: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        for name, value in row.items() if row.get("seed") else ():
            of_seeds.setdefault(name, {}).setdefault(row["seed"], set()).add(value)
    measured = [name for name, of in of_seeds.items() if name != "seed" and any(of[seed] != of[min(of)] for seed in of)]
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in rows if measured else ():
        place = tuple(value for name, value in row.items() if name not in ("seed", *measured))
        groups.setdefault(place, []).extend([row] if row.get("seed") else [])
    for group in groups.values():
        numbers = {name: [_float(row[name]) for row in group] for name in measured}
        means = {
            name: f"{statistics.fmean(one for one in values if one is not None):.10g}"
            for name, values in numbers.items()
            if values and None not in values
        }
        if len(group) > 1 and means:
            yield _row({**group[0], **dict.fromkeys(measured, ""), **means, "seed": f"mean of {len(group)}"})


def _marks(root: Element, table: Sequence[Mapping[str, str]]) -> Iterator[tuple[float, float, str, float]]:
    """Yield place, text and reach of what shows a row, of each panel the same share of ``MOST_MARKS``."""
    rows, known, found = [_row(row) for row in table], dict[tuple[float, ...], list[Axis]](), list[list[Mark]]()
    placed = [*rows, *_means(table)]
    for panel in (node for node in root.iter("g") if str(node.get("id", "")).startswith("axes_")):
        axes = [node for node in panel if str(node.get("id", "")).startswith("matplotlib.axis_")]
        if (tie := ties.read(panel.attrib)) is not None:
            yield from _tied(panel, tie, rows)
        elif len(axes) == 2:
            xs, ys = (_axes(node, kind, known) for node, kind in zip(axes, "xy", strict=True))
            places = dict.fromkeys(_places(panel))
            found.append(max((_shown(places, placed, x, y) for x in xs for y in ys), key=len))
    every = max(1, math.ceil(sum(map(len, found)) / MOST_MARKS))
    yield from ((*mark, 0.0) for own in found for mark in own[::every])


def _tied(panel: Element, tie: ties.Tie, rows: Sequence[Row]) -> Iterator[tuple[float, float, str, float]]:
    """Yield the middle of each part of a panel that says which rows it shows; half its diagonal is the reach."""
    corners = next((_vertices(path) for path in panel.iter("path")), [])
    if len(corners) < 4:  # a text
        spots = [
            _pairs(f"{text.get('x', '')} {text.get('y', '')} {text.get('transform', '')}")
            for text in panel.iter("text")
        ]
        (x, y), *_ = spots[0] if spots and spots[0] else [(0.0, 0.0)]
        corners = [(x, y - 10), (x + 60, y + 50)]
    left, right, top, bottom = _bounds(corners)
    width, height = (right - left) / tie.columns, (bottom - top) / math.ceil(len(tie.rows) / tie.columns)
    for part, row in enumerate(tie.rows):
        if row is not None and row < len(rows):
            line, column = divmod(part, tie.columns)
            middle = left + (column + 0.5) * width, top + (line + 0.5) * height
            yield (*middle, rows[row].text, math.hypot(width, height) / 2)


def _bounds(points: Sequence[Point]) -> tuple[float, float, float, float]:
    xs, ys = zip(*points, strict=True)
    return min(xs), max(xs), min(ys), max(ys)


def _pairs(text: str) -> list[Point]:
    numbers = [float(number) for number in re.findall(r"-?[0-9.]+(?:e-?[0-9]+)?", text)]
    return list(zip(numbers[::2], numbers[1::2], strict=False))


def _vertices(path: Element) -> list[Point]:
    """Return the points of a path of straight lines; none of one with curves."""
    return [] if re.search("[CQSTA]", path.get("d", "")) else _pairs(path.get("d", ""))


def _places(panel: Element) -> Iterator[Point]:
    """Yield where a panel's markers, bars, steps of histograms and vertices of lines without markers lie."""
    others = ("matplotlib.", "legend", "text", "table")
    for node in [node for node in panel if not str(node.get("id", "")).startswith(others)][1:]:
        used = [(float(one.get("x", "nan")), float(one.get("y", "nan"))) for one in node.iter("use")]
        yield from used
        for points, style in ((_vertices(path), path.get("style", "")) for path in node.iter("path") if not used):
            if not str(node.get("id", "")).startswith("patch_"):
                yield from points if len(points) <= MOST_OF_LINE else ()
            elif "fill: none" in style:  # the outline of a histogram: a row lies at the left end of a step
                yield from (one for one, other in itertools.pairwise(points) if one[1] == other[1])
            elif len(points) in (4, 5):
                left, right, top, _ = _bounds(points)
                yield (left + right) / 2, top


def _shown(places: Collection[Point], rows: Sequence[Row], x: Axis, y: Axis) -> list[Mark]:
    """Return the places at which rows lie, each with the text of its row."""
    here = [place for place in places if math.isfinite(sum(place))]
    heights = {round(up / NEAR) + step for _, up in here for step in (-1, 0, 1)}
    placed: dict[tuple[Any, int], list[tuple[float, float, str]]] = {}
    for row in rows:
        for name, at in ((name, y.place(value)) for name, value in row.numbers.items()):
            if abs(at) < 1e5 and (level := round(at / NEAR)) in heights:
                others = [x.place(value) for other, value in row.numbers.items() if other != name and x.scale]
                labels = [(label.lower(), 0.0) for _, label in x.labels if not x.scale and label.lower() in row.words]
                spots = [(round(one / NEAR), one) for one in others if abs(one) < 1e5]
                for key, across in (*labels, *spots, (ALONE, 0.0)):
                    placed.setdefault((key, level), []).append((across, at, row.text))
    found = []
    for across, up in here:
        nearby = [round(across / NEAR) + step for step in (-1, 0, 1)] if x.scale else [x.label(across)]
        levels = [round(up / NEAR) + step for step in (-1, 0, 1)]
        near = [one for key in nearby for level in levels for one in placed.get((key, level), ())]
        close = [(abs(height - up) + (abs(at - across) if x.scale else 0.0), text) for at, height, text in near]
        close = [one for one in close if one[0] < NEAR]
        if not close:  # a mark may be moved aside, so as not to cover another
            here_alone = [one for level in levels for one in placed.get((ALONE, level), ())]
            alone = {text for _, at, text in here_alone if abs(at - up) < EXACT}
            close = [(0.0, text) for text in alone if len(alone) == 1]
        least = min(close, default=(0.0, ""))[0] + EXACT
        texts = dict.fromkeys(text for away, text in close if away < least)
        if 0 < len(texts) <= MOST_ALIKE:
            found.append((across, up, "\n\n".join(texts)))
    return found
