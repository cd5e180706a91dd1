"""Figures: rows of a CSV, and axes drawn from these rows alone; the same records give the same bytes."""

import csv
import io
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import intervals, made_of
from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.views import View
from paper_repro.base.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

Row = dict[str, Any]

PAPER_COLOR, REFERENCE_COLOR, OWN_COLOR = "#222222", "#E08214", "#2166AC"
FLOOR_COLOR = "#7A5195"
FLOOR_LABEL: Any = {"textcoords": "offset points", "ha": "right", "fontsize": 6, "color": FLOOR_COLOR}
FLOOR_LABEL_HEIGHT = 7
"""Points from one label of a floor to the next above it."""
DOTS_PER_INCH = 160
FOOTER_LINE, FOOTER_CHARACTER = 0.1, 0.05
"""Inches: the height of a line of the footer, and the width of one of its characters (at most, on average)."""
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "paper_repro",
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class FloorLine:
    """A floor as a figure draws it."""

    label: str
    value: float
    panel: int | None = None
    """The index of its panel; None: in every one."""


class Figure(ABC):
    """One figure; the Python file beside the artifact's YAML holds a subclass."""

    size: tuple[float, float] = (7.0, 4.0)
    """Width and height in inches."""
    metric: str | None = None
    """The metric on the vertical axis, whose floors are drawn as lines; None where no panel shows one."""
    panels: slice = slice(None)
    """The panels that show it."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.artifact: Artifact = view.artifact

    @abstractmethod
    def rows(self) -> list[Row]:
        """Return all that is drawn, as the rows of figure.csv (every row with the same keys)."""

    @abstractmethod
    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        """Draw ``rows``, and nothing that is not in them."""

    def footer(self, rows: Sequence[Row]) -> str:
        """Return the line below the figure: scale, data, size of the models and number of seeds."""
        return made_of.footer(self.view, rows)

    def floors(self) -> list[FloorLine]:
        """Return the lines of floors; a figure whose panels differ in data or metric gives each line its panel."""
        return [] if self.metric is None else floor_lines(self.view, self.metric)

    def write(self, folder: Path) -> list[Path]:
        """Write figure.csv, .png and .svg into ``folder``."""
        from matplotlib import rc_context, rcdefaults, rcParams
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas

        rows = self.rows()
        lines = self.floors() if rows else []
        contents = {"figure.csv": _csv(_with_floors(rows, lines))}
        png, svg = io.BytesIO(), io.BytesIO()
        with rc_context():
            rcdefaults()  # a user's own style must not change the bytes
            rcParams.update(STYLE)
            canvas = Canvas(figsize=self.size, dpi=DOTS_PER_INCH, layout="constrained")
            self.draw(canvas, rows)
            draw_floors(canvas.axes[self.panels], lines)
            if text := self.footer(rows):
                _write_below(canvas, text)
            # Not savefig, which draws each format once more to measure it.
            FigureCanvasAgg(canvas).print_png(png, metadata={"Software": None})
            canvas.set_layout_engine("none")
            # The solver of the layout leaves other last bits each time, and these name clip paths.
            for part in canvas.subfigs:
                part.bbox_relative.set_points(part.bbox_relative.get_points().round(6))
            for axes in canvas.axes:
                left, bottom, width, height = (round(bound, 6) for bound in axes.get_position().bounds)
                axes.set_position((left, bottom, width, height))
            FigureCanvasSVG(canvas).print_svg(svg, metadata={"Date": None, "Creator": None})
        contents |= {"figure.png": png.getvalue(), "figure.svg": svg.getvalue()}
        for name, content in contents.items():
            write_atomically(folder / name, content)
        return [folder / name for name in contents]


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
    """Draw each floor as a dotted line with its name at its right end.

    Floors of one name that lie within the height of a line of text share a label; labels of others stand one above the
    other.  Of a floor beyond limits that a figure has set, the name and the number stand at that edge.
    """
    for index, axes in enumerate(panels):
        own = [line for line in lines if line.panel in (None, index)]
        low, high = sorted(axes.get_ylim())
        inside = [line for line in own if axes.get_autoscaley_on() or low <= line.value <= high]
        for line in inside:
            axes.axhline(line.value, color=FLOOR_COLOR, linestyle=":", linewidth=1.2)
        for line, up in _labelled(axes, inside):
            place: Any = {"xy": (1.0, line.value), "xycoords": axes.get_yaxis_transform(), "xytext": (-2, 2 + up)}
            axes.annotate(line.label, **place, **FLOOR_LABEL).set_in_layout(False)
        beyond = [line for line in own if line not in inside]
        for row, line in enumerate(beyond):
            above = line.value > high
            text = f"{line.label} {line.value:.3g}, {'above' if above else 'below'}"
            step = FLOOR_LABEL_HEIGHT * row
            place = {"xy": (1.0, float(above)), "xycoords": "axes fraction"}
            shift = (-2, -FLOOR_LABEL_HEIGHT - step if above else 2 + step)
            axes.annotate(text, xytext=shift, **place, **FLOOR_LABEL).set_in_layout(False)


def _labelled(axes: "Axes", lines: Sequence[FloorLine]) -> list[tuple[FloorLine, float]]:
    """Return the floors that get a label, from below to above, each with the points by which it is moved up.

    Points are those of the axes before the layout, which makes them at most a little higher.
    """
    points = 72.0 / axes.figure.dpi
    found: list[tuple[FloorLine, float]] = []
    top, named = -math.inf, dict.fromkeys((line.label for line in lines), -math.inf)
    for line in sorted(lines, key=lambda line: line.value):
        height = points * float(axes.transData.transform((0.0, line.value))[1])
        if height - named[line.label] < FLOOR_LABEL_HEIGHT:
            continue
        named[line.label] = height
        up = max(0.0, top + FLOOR_LABEL_HEIGHT - height)
        top = height + up
        found.append((line, up))
    return found


def _with_floors(rows: Sequence[Row], lines: Sequence[FloorLine]) -> list[Row]:
    """Return the rows of figure.csv, those of the floors last."""
    if not lines:
        return list(rows)
    empty = dict.fromkeys(rows[0], "")
    return [
        *({**row, "floor": "", "floor_value": ""} for row in rows),
        *({**empty, "floor": line.label, "floor_value": line.value} for line in lines),
    ]


def log_ticks(axis: "Axis") -> None:
    """Ticks at 1, 2 and 5 times the powers of ten of a logarithmic axis, written 2k, 5M."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_formatter(NullFormatter())


def _write_below(canvas: "Canvas", text: str) -> None:
    """Make the figure higher by a strip below all that is drawn, and write a line of text, or several, into it.

    A legend "outside lower" would lie on it: figures have theirs above or beside.
    """
    width, height = (float(inches) for inches in canvas.get_size_inches())
    lines = textwrap.wrap(text, max(20, int(width / FOOTER_CHARACTER)))
    strip = FOOTER_LINE * len(lines) + 0.06
    share = strip / (height + strip)
    canvas.set_size_inches(width, height + strip)
    engine = canvas.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, share, 1, 1 - share))  # type: ignore[call-arg]
    canvas.text(0.04 / width, 0.04 / (height + strip), "\n".join(lines), fontsize=6, color="#555555", va="bottom")


def _csv(rows: Sequence[Row]) -> bytes:
    stream = io.StringIO()
    if rows:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return stream.getvalue().encode()
