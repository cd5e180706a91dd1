"""Points far above all others of a panel: their numbers stand at its upper edge, so that they flatten nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import intervals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAR = 1.0
"""A mean is far above the others if it lies more than so many times their span above the highest of them."""
MOST = 4
"""No more than one in so many means can be far above the others."""
MARKS = "A mean far above the others stands as a number at the upper edge."
ROOM = 0.1
"""What a row of numbers takes of the span of the values below it."""
ROW = 7
"""Points from one row to the next below it."""


@dataclass(frozen=True)
class Seeds:
    """What the seeds of a line have at one place."""

    place: float
    values: tuple[float, ...]
    color: str

    @property
    def mean(self) -> float:
        return intervals.mean(list(self.values))


def gathered(points: Sequence[tuple[float, float]], color: str) -> list[Seeds]:
    """Return a line's (place, value) by their place."""
    groups: dict[float, list[float]] = {}
    for place, value in points:
        groups.setdefault(place, []).append(value)
    return [Seeds(place, tuple(values), color) for place, values in groups.items()]


def far_above(found: Sequence[Seeds]) -> list[Seeds]:
    """Return those whose means lie far above every value of the others, the lowest first."""
    ordered = sorted(found, key=lambda one: one.mean)
    for count in range(len(ordered) // MOST, 0, -1):
        near = [value for one in ordered[:-count] for value in one.values]
        if ordered[-count].mean - max(near) > FAR * (max(near) - min(near)):
            return ordered[-count:]
    return []


def number_far_points(axes: "Axes", found: Sequence[Seeds]) -> None:
    """Limit a panel, of which all lines are drawn, to what is not far above the rest, and write the numbers of the far
    means at the upper edge, in the colours of their lines.

    Args:
        axes: with an even vertical axis that follows the data, and with its horizontal axis set.
        found: all that is drawn.
    """
    far = far_above(found)
    if not far:
        return
    near = [value for one in found if one not in far for value in one.values]
    axes.dataLim.y1 = max(near) + ROOM * len(far) * (max(near) - min(near))
    axes.autoscale_view(scalex=False)
    for row, one in enumerate(reversed(far)):
        across = axes.transAxes.inverted().transform(axes.transData.transform((one.place, 0.0)))[0]
        side = "right" if across > 0.75 else "left" if across < 0.25 else "center"
        place: Any = {"xy": (one.place, 1.0), "xycoords": axes.get_xaxis_transform(), "xytext": (0, -ROW * row)}
        style: Any = {"textcoords": "offset points", "fontsize": 6, "color": one.color, "ha": side, "va": "top"}
        axes.annotate(f"{one.mean:.3g}, above", **place, **style).set_in_layout(False)
