"""Which rows of figure.csv a panel of pictures, a heat map or a text shows, written into the SVG as the panel's id.

What marks lie on axes with numbers is read off these axes; a picture has none, so whoever draws it says what it shows.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

START = "axes_of_rows"
_NAME = re.compile(rf"{START}_(\d+)_((?:\d+(?:-\d+)?|x)(?:\.(?:\d+(?:-\d+)?|x))*)")
MOST_PARTS = 10_000


@dataclass(frozen=True)
class Tie:
    """The parts of a panel, in the order in which one reads, with the row of figure.csv that each shows."""

    columns: int
    rows: tuple[int | None, ...]
    """From 0; None for a part that no row is of."""


def tie(axes: "Axes", rows: Sequence[Any], shown: Sequence[Any], columns: int | None = None) -> None:
    """Note which rows a panel's parts show.

    Args:
        rows: all rows of the figure.
        shown: those of the parts, line by line; None for a part without a row.
        columns: parts of a line; all by default.
    """
    places = {id(row): place for place, row in enumerate(rows)}
    axes.set_gid(name([None if row is None else places[id(row)] for row in shown], columns or len(shown)))


def name(places: Sequence[int | None], columns: int) -> str:
    """Write the places of rows as an id: ``axes_of_rows_3_0-1.x`` for the rows 0 and 1 and a part without a row."""
    runs: list[list[int | None]] = []
    for place in places:
        if runs and place is not None and runs[-1][-1] is not None and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    texts = ["x" if run[0] is None else f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"{START}_{columns}_{'.'.join(texts)}"


def read(attributes: Mapping[str, str]) -> Tie | None:
    """Return what a panel's id says; None for one that says nothing."""
    found = _NAME.fullmatch(attributes.get("id", ""))
    if found is None or int(found[1]) < 1:
        return None
    rows: list[int | None] = []
    for run in found[2].split("."):
        ends = run.split("-")
        if run != "x" and int(ends[-1]) - int(ends[0]) >= MOST_PARTS - len(rows):
            return None
        rows += [None] if run == "x" else range(int(ends[0]), int(ends[-1]) + 1)
    return Tie(int(found[1]), tuple(rows))
