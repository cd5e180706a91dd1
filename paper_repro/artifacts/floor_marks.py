"""Floors in a figure: dotted lines with their names, placed where they cover least and flatten nothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import intervals, palette
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

BEHIND: Any = {"facecolor": palette.GROUND, "edgecolor": "none", "alpha": 0.8, "pad": 0.2}
"""What hides what a label would be crossed by; an outline of the letters would make them paths in the SVG."""
FLOOR_LABEL: Any = {"textcoords": "offset points", "fontsize": 6, "color": palette.FLOOR, "bbox": BEHIND}
FLOOR_LABEL_HEIGHT = 7
"""Points from one label of a floor to the next above it."""
ENDS = {"right": (1.0, -2), "left": (0.0, 2), "center": (0.5, 0)}
"""Where a label may stand: its place as a share of the width of a panel, and the points from there to the label."""
FLATTENS = 1.0
"""A floor further from the data than so many times their span would flatten them: its number stands at the edge."""
STEPS_OF_A_LINE = 50
"""Between two points of a line, where it is asked what a label covers."""


@dataclass(frozen=True)
class FloorLine:
    """A floor as a figure draws it."""

    label: str
    value: float
    panel: int | None = None
    """The index of its panel; None: in every one."""


def floor_lines(
    view: View, metric: str, place: Mapping[str, str] | None = None, panel: int | None = None
) -> list[FloorLine]:
    """Return the floors of a metric, one for each floor and each data of the models at a (partial) place.

    Their height is the mean over seeds.
    """
    found = []
    for floor in view.floors:
        here = [key for key in floor.plan.keys if (place or {}).items() <= dict(key).items()]
        values = floor.samples(metric) if here else {}
        if values:
            found.append(FloorLine(floor.spec.label, round(intervals.mean(list(values.values())), 8), panel))
    return list(dict.fromkeys(found))


def draw_floors(panels: "Sequence[Axes]", lines: Sequence[FloorLine]) -> None:
    """Draw each floor as a dotted line with its name at the end that covers less, the right one if both are alike, or
    in the middle if that covers less than either.

    Floors of one name that lie within the height of a line of text share a label; labels of others stand one above the
    other.  Of a floor beyond limits that a figure has set, or so far from the data that they would be flattened, the
    name and the number stand at that edge.
    """
    reaches = [_reach(axes) for axes in panels]  # before a floor in one panel widens an axis that others share
    found = [[line for line in lines if line.panel in (None, at) and axes.axison] for at, axes in enumerate(panels)]
    for axes, (low, high), own in zip(panels, reaches, found, strict=True):
        for line in own:
            if low <= line.value <= high:
                axes.axhline(line.value, color=palette.FLOOR, linestyle=":", linewidth=1.2)
        if own and axes.get_autoscaley_on():
            axes.autoscale_view(scalex=False)  # a line within the margin of another would lie on the axis
    for axes, (low, high), own in zip(panels, reaches, found, strict=True):
        edges = {above: _numbers(own, low, high, above) for above in (False, True)}
        drawn = [line for line in own if low <= line.value <= high]
        rows = {above: len(texts) for above, texts in edges.items()}
        if any(rows.values()) and (axes.get_autoscaley_on() or _are_crossed(axes, drawn, rows)):
            _make_room(axes, rows[False], rows[True] + bool(drawn and not axes.get_autoscaley_on()))
        for above, texts in edges.items():
            _label_edge(axes, texts, above)
        _label_lines(axes, drawn)


def _are_crossed(axes: "Axes", lines: Sequence[FloorLine], rows: Mapping[bool, int]) -> bool:
    """Return whether one of the lines, or its name, lies where so many rows of labels stand at the edges."""
    lowest = 2 + FLOOR_LABEL_HEIGHT * rows[False] if rows[False] else -math.inf
    highest = _points(axes) - FLOOR_LABEL_HEIGHT * (rows[True] + 1) if rows[True] else math.inf
    return any(not lowest < _height(axes, line.value) < highest for line in lines)


def _numbers(lines: Sequence[FloorLine], low: float, high: float, above: bool) -> list[str]:
    """Return the names and numbers of the floors above or below what a panel has room for, each once."""
    beyond = [line for line in lines if (line.value > high if above else line.value < low)]
    side = "above" if above else "below"
    return list(dict.fromkeys(f"{line.label} {_number(line.value)}, {side}" for line in beyond))


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _label_edge(axes: "Axes", texts: Sequence[str], above: bool) -> None:
    """Write texts at the upper or lower edge of a panel, a row for each."""
    for row, text in enumerate(texts):
        up = -FLOOR_LABEL_HEIGHT * (row + 1) if above else 2 + FLOOR_LABEL_HEIGHT * row
        side = _freest(axes, text, up + (_points(axes) if above else 0.0))
        across, aside = ENDS[side]
        place: Any = {"xy": (across, float(above)), "xycoords": "axes fraction", "xytext": (aside, up), "ha": side}
        axes.annotate(text, **place, **FLOOR_LABEL).set_in_layout(False)


def _label_lines(axes: "Axes", lines: Sequence[FloorLine]) -> None:
    """Write the names of the floors that have a line above it."""
    for line, up in _labelled(axes, lines):
        text = line.label if not up else f"{line.label} {_number(line.value)}"  # it stands above another line
        side = _freest(axes, text, _height(axes, line.value) + 2 + up)
        across, aside = ENDS[side]
        place: Any = {"xy": (across, line.value), "xycoords": axes.get_yaxis_transform()}
        place |= {"xytext": (aside, 2 + up), "ha": side}
        axes.annotate(text, **place, **FLOOR_LABEL).set_in_layout(False)


def _make_room(axes: "Axes", below: int, above: int) -> None:
    """Move the limits of a panel away from its data by the height of so many labels at its edges."""
    low, high = axes.transAxes.inverted().transform(axes.transData.transform([(0, y) for y in axes.get_ylim()]))[:, 1]
    down, up = (FLOOR_LABEL_HEIGHT * count / _points(axes) for count in (below, above))
    ends = axes.transData.inverted().transform(axes.transAxes.transform([(0, low - down), (0, high + up)]))[:, 1]
    axes.set_ylim(*(float(end) for end in ends))


def _reach(axes: "Axes") -> tuple[float, float]:
    """Return between which values a panel has room for floors: its limits if they were set, else those of the data,
    widened by ``FLATTENS`` times their span.
    """
    if not axes.get_autoscaley_on():
        low, high = sorted(axes.get_ylim())
        return low, high
    panels = axes.get_shared_y_axes().get_siblings(axes)
    lowest = "minposy" if axes.get_yscale() == "log" else "y0"
    low, high = (end(getattr(one.dataLim, name) for one in panels) for end, name in ((min, lowest), (max, "y1")))
    if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
        return -math.inf, math.inf
    if axes.get_yscale() == "log":
        widening = (high / low) ** FLATTENS
        return low / widening, high * widening
    return low - FLATTENS * (high - low), high + FLATTENS * (high - low)


def _labelled(axes: "Axes", lines: Sequence[FloorLine]) -> list[tuple[FloorLine, float]]:
    """Return the floors that get a label, from below to above, each with the points by which it is moved up.

    Lines that lie within the height of a label form a group: its labels, each name once, stand above its highest line.
    Points are those of the axes before the layout, which makes them at most a little higher.
    """
    heights = [(_height(axes, line.value), line) for line in lines]
    groups: list[list[tuple[float, FloorLine]]] = []
    for height, line in sorted(heights, key=lambda one: one[0]):
        if groups and height - groups[-1][-1][0] < FLOOR_LABEL_HEIGHT:
            groups[-1].append((height, line))
        else:
            groups.append([(height, line)])
    found: list[tuple[FloorLine, float]] = []
    top = -math.inf
    for group in groups:
        named = {line.label: (height, line) for height, line in reversed(group)}
        for height, line in sorted(named.values(), key=lambda one: one[0]):
            at = max(top, group[-1][0])
            found.append((line, at - height))
            top = at + FLOOR_LABEL_HEIGHT
    return found


def _points(axes: "Axes") -> float:
    """Return the height of a panel in points."""
    return 72.0 * float(axes.get_window_extent().height) / axes.figure.dpi


def _height(axes: "Axes", value: float) -> float:
    """Return how many points above the lower edge of a panel a value lies."""
    return _points(axes) * float(axes.transAxes.inverted().transform(axes.transData.transform((0.0, value)))[1])


def _freest(axes: "Axes", text: str, up: float) -> str:
    """Return the one of ``ENDS`` at which a label, so many points above the lower edge, lies on least."""
    return min(ENDS, key=lambda side: _covered(axes, text, up, side))


def _covered(axes: "Axes", text: str, up: float, side: str) -> tuple[int, int]:
    """Return on how many other texts and on how many points of what is drawn a label lies at one of ``ENDS``."""
    from matplotlib.transforms import Bbox

    panel, point = axes.get_window_extent(), axes.figure.dpi / 72.0
    width = min(0.55 * FLOOR_LABEL["fontsize"] * len(text) * point, panel.width)
    start = panel.x0 + ENDS[side][0] * (panel.width - width)
    box = Bbox.from_bounds(start, panel.y0 + up * point, width, FLOOR_LABEL_HEIGHT * point)
    inner = box.padded(-point)  # the boxes of texts one above the other touch
    texts = sum(inner.overlaps(other.get_window_extent()) for other in axes.texts if other.get_text())
    count = 0
    for curve in axes.lines:
        count += _inside(curve.get_transform().transform(curve.get_path().interpolated(STEPS_OF_A_LINE).vertices), box)
    for cloud in axes.collections:
        count += _inside(axes.transData.transform(cloud.get_offsets()), box)
    return texts, count


def _inside(places: Any, box: "Bbox") -> int:
    """Return how many of (N, 2) places lie in a box."""
    x, y = places[:, 0], places[:, 1]
    return int(((x >= box.x0) & (x <= box.x1) & (y >= box.y0) & (y <= box.y1)).sum())
