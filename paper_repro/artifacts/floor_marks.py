"""Floors in a figure: dotted lines with their names, placed where they cover least and flatten nothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import intervals, palette
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLOOR_LABEL: Any = {"textcoords": "offset points", "fontsize": 6, "color": palette.FLOOR}
FLOOR_LABEL_HEIGHT = 7
"""Points from one label of a floor to the next above it."""
FLATTENS = 3.0
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
    """Draw each floor as a dotted line with its name at the end that covers less, the right one if both are alike.

    Floors of one name that lie within the height of a line of text share a label; labels of others stand one above the
    other.  Of a floor beyond limits that a figure has set, or so far from the data that they would be flattened, the
    name and the number stand at that edge.
    """
    for index, axes in enumerate(panels):
        own = [line for line in lines if line.panel in (None, index)]
        if not own or not axes.axison:
            continue
        low, high = _reach(axes)
        inside = [line for line in own if low <= line.value <= high]
        for line in inside:
            axes.axhline(line.value, color=palette.FLOOR, linestyle=":", linewidth=1.2)
        beyond = [line for line in own if line not in inside]
        if axes.get_autoscaley_on() and beyond:
            _make_room(axes, [line.value > high for line in beyond])
        higher = sum(line.value > high for line in beyond)
        edges = len(beyond) - higher, higher
        for line, up in _labelled(axes, inside):
            left = _is_at_edge(axes, line, up, edges) or _crossed(axes, line, up, left=True) < _crossed(
                axes, line, up, left=False
            )
            place: Any = {"xy": (1.0 - left, line.value), "xycoords": axes.get_yaxis_transform()}
            place |= {"xytext": (2 if left else -2, 2 + up), "ha": "left" if left else "right"}
            axes.annotate(line.label, **place, **FLOOR_LABEL).set_in_layout(False)
        for row, line in enumerate(beyond):
            above = line.value > high
            text = f"{line.label} {line.value:.3g}, {'above' if above else 'below'}"
            step = FLOOR_LABEL_HEIGHT * row
            place = {"xy": (1.0, float(above)), "xycoords": "axes fraction", "ha": "right"}
            shift = (-2, -FLOOR_LABEL_HEIGHT - step if above else 2 + step)
            axes.annotate(text, xytext=shift, **place, **FLOOR_LABEL).set_in_layout(False)


def _make_room(axes: "Axes", above: Sequence[bool]) -> None:
    """Move the limits of a panel away from its data by the height of the labels at its edges."""
    low, high = axes.transAxes.inverted().transform(axes.transData.transform([(0, y) for y in axes.get_ylim()]))[:, 1]
    points = 72.0 * float(axes.get_window_extent().height) / axes.figure.dpi
    up, down = (FLOOR_LABEL_HEIGHT * above.count(side) / points for side in (True, False))
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
    low, high = (end(getattr(one.dataLim, name) for one in panels) for end, name in ((min, "y0"), (max, "y1")))
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
    points = 72.0 / axes.figure.dpi
    heights = [(points * float(axes.transData.transform((0.0, line.value))[1]), line) for line in lines]
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


def _is_at_edge(axes: "Axes", line: FloorLine, up: float, edges: tuple[int, int]) -> bool:
    """Return whether a floor's label would lie on those at the right end of the lower or upper edge (so many each)."""
    box, point = axes.get_window_extent(), axes.figure.dpi / 72.0
    low = (float(axes.transData.transform((0.0, line.value))[1]) + (up + 2) * point - box.y0) / point
    below, above = (FLOOR_LABEL_HEIGHT * count for count in edges)
    return low < below or (above > 0 and low + FLOOR_LABEL_HEIGHT > float(box.height) / point - above)


def _crossed(axes: "Axes", line: FloorLine, up: float, left: bool) -> int:
    """Return how many points of what is drawn lie under a floor's label at one of its ends."""
    box = axes.get_window_extent()
    point = axes.figure.dpi / 72.0
    width = min(0.55 * FLOOR_LABEL["fontsize"] * len(line.label) * point, box.width)
    low = float(axes.transData.transform((0.0, line.value))[1]) + up * point
    start = box.x0 if left else box.x1 - width
    count = 0
    for curve in axes.lines:
        places = curve.get_transform().transform(curve.get_path().interpolated(STEPS_OF_A_LINE).vertices)
        count += _inside(places, start, width, low, FLOOR_LABEL_HEIGHT * point)
    for cloud in axes.collections:
        places = axes.transData.transform(cloud.get_offsets())
        count += _inside(places, start, width, low, FLOOR_LABEL_HEIGHT * point)
    return count


def _inside(places: Any, left: float, width: float, low: float, height: float) -> int:
    """Return how many of (N, 2) places lie in a box."""
    x, y = places[:, 0], places[:, 1]
    return int(((x >= left) & (x <= left + width) & (y >= low) & (y <= low + height)).sum())
