"""Figures: rows of a CSV, and axes drawn from these rows alone; the same records give the same bytes."""

import csv
import io
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import intervals, made_of, palette, printed_numbers
from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.printed_numbers import PrintedNumber
from paper_repro.artifacts.views import View
from paper_repro.base.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

Row = dict[str, Any]

FLOOR_LABEL: Any = {"textcoords": "offset points", "ha": "right", "fontsize": 6, "color": palette.FLOOR}
FLOOR_LABEL_HEIGHT = 7
"""Points from one label of a floor to the next above it."""
FLATTENS = 3.0
"""A floor further from the data than so many times their span would flatten them: its number stands at the edge."""
DOTS_PER_INCH = 160
FOOTER_LINE, FOOTER_CHARACTER = 0.1, 0.05
"""Inches: the height of a line of the footer, and the width of one of its characters (at most, on average)."""
LEGEND_FONT, LEGEND_HANDLE, LEGEND_CHARACTER = 8, 0.52, 0.062
"""Points; inches: the width of a handle with the space around it, and of one character of the longest label."""
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.facecolor": palette.GROUND,
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
    """One figure; the Python file beside the artifact's YAML holds a subclass.

    Its labelled artists go into one legend above the panels, and the line below says scale, data, seeds and what the
    marks are.  Floors and the paper's numbers are drawn by the base, see ``floors`` and ``printed``.
    """

    stem = "figure"
    """The name of its files without their ending."""
    marks: str
    """What dots, lines and bars are, in a sentence or two."""
    legend = True
    """Whether what is labelled gets a legend; False where the panels name what they show."""
    legend_title: str | None = None
    floors_drawn = False
    """Whether ``draw`` itself shows the artifact's floors."""
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

    def appendix(self) -> "Figure | None":
        """Return the figure of what the main one leaves out, with a ``stem`` of its own; None for most."""
        return None

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        """Return the paper's numbers that belong to this figure; which of them are drawn, ``printed_numbers`` says."""
        return []

    def footer(self, rows: Sequence[Row]) -> str:
        """Return the lines below the figure: scale, data, size of the models, number of seeds; what its marks are; what
        of the paper's numbers and of the floors is drawn.
        """
        told = [f"{made_of.footer(self.view, rows)}.", self.marks]
        if rows:
            told += [printed_numbers.sentence(self.view, self.printed(rows)), self._absent_floors()]
        return " ".join(part for part in told if part)

    def _absent_floors(self) -> str:
        """Name the floors that have no line, with their numbers."""
        lines = {line.label for line in self.floors()}
        absent = []
        for floor in self.view.floors if not self.floors_drawn else ():
            values = {name: floor.samples(name) for name in floor.spec.metrics if name in self.artifact.metrics}
            texts = [
                f"{self.artifact.metrics[name].title.lower()} {intervals.mean(list(found.values())):.4g}"
                for name, found in values.items()
                if found
            ]
            if floor.spec.label not in lines and texts:
                absent.append(f"{floor.spec.label} ({', '.join(texts)})")
        listed = "; ".join(dict.fromkeys(absent))
        return f"On no axis here: the floor{'s' if len(absent) > 1 else ''} {listed}." if absent else ""

    def floors(self) -> list[FloorLine]:
        """Return the lines of floors; a figure whose panels differ in data or metric gives each line its panel."""
        return [] if self.metric is None else floor_lines(self.view, self.metric)

    def write(self, folder: Path) -> list[Path]:
        """Write figure.csv, .png and .svg into ``folder``, and those of an appendix."""
        from matplotlib import rc_context, rcdefaults, rcParams
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas

        rows = self.rows()
        lines = self.floors() if rows else []
        printed = self.printed(rows) if rows else []
        shown = printed_numbers.drawn(self.view, printed) if printed else []
        png, svg = io.BytesIO(), io.BytesIO()
        with rc_context():
            rcdefaults()  # a user's own style must not change the bytes
            rcParams.update(STYLE)
            canvas = Canvas(figsize=self.size, dpi=DOTS_PER_INCH, layout="constrained")
            self.draw(canvas, rows)
            for axes in canvas.axes:
                axes.minorticks_off()
            draw_floors(canvas.axes[self.panels], lines)
            printed_numbers.draw(canvas.axes, shown)
            if self.legend:
                _draw_legend(canvas, self.legend_title, bool(shown))
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
        table = _csv(_with_marks(rows, lines, printed))
        contents = {".csv": table, ".png": png.getvalue(), ".svg": svg.getvalue()}
        for ending, content in contents.items():
            write_atomically(folder / f"{self.stem}{ending}", content)
        other = self.appendix()
        return [folder / f"{self.stem}{ending}" for ending in contents] + (other.write(folder) if other else [])


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
    other.  Of a floor beyond limits that a figure has set, or so far from the data that they would be flattened, the
    name and the number stand at that edge.
    """
    for index, axes in enumerate(panels):
        own = [line for line in lines if line.panel in (None, index)]
        if not own:
            continue
        low, high = _reach(axes)
        inside = [line for line in own if low <= line.value <= high]
        for line in inside:
            axes.axhline(line.value, color=palette.FLOOR, linestyle=":", linewidth=1.2)
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


def _reach(axes: "Axes") -> tuple[float, float]:
    """Return between which values a panel has room for floors: its limits if they were set, else those of the data,
    widened by ``FLATTENS`` times their span.
    """
    if not axes.get_autoscaley_on():
        low, high = sorted(axes.get_ylim())
        return low, high
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
        return -math.inf, math.inf
    if axes.get_yscale() == "log":
        widening = (high / low) ** FLATTENS
        return low / widening, high * widening
    return low - FLATTENS * (high - low), high + FLATTENS * (high - low)


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


def _with_marks(rows: Sequence[Row], lines: Sequence[FloorLine], printed: Sequence[PrintedNumber]) -> list[Row]:
    """Return the rows of the CSV; those of the floors and of the paper's numbers last, in columns of their own."""
    if not rows:
        return []
    names = [*rows[0], *(("floor", "floor_value") if lines else ()), *(("paper", "paper_value") if printed else ())]
    empty = dict.fromkeys(names, "")
    return [
        *({**empty, **row} for row in rows),
        *({**empty, "floor": line.label, "floor_value": line.value} for line in lines),
        *({**empty, "paper": one.label, "paper_value": one.value} for one in printed),
    ]


def _draw_legend(canvas: "Canvas", title: str | None, with_paper: bool) -> None:
    """Draw one legend above all panels: each label once, the paper's numbers last."""
    found: dict[str, Any] = {}
    for axes in canvas.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if with_paper:
        found[printed_numbers.LABEL] = printed_numbers.legend_entry()
    if not found:
        return
    width = LEGEND_HANDLE + LEGEND_CHARACTER * max(map(len, found))
    columns = max(1, min(len(found), int(float(canvas.get_figwidth()) / width)))
    style: Any = {"fontsize": LEGEND_FONT, "title_fontsize": LEGEND_FONT, "columnspacing": 1.2, "borderaxespad": 0.2}
    canvas.legend(list(found.values()), list(found), loc="outside upper left", ncols=columns, title=title, **style)


def seeds_and_mean(
    axes: "Axes",
    points: Iterable[tuple[float, float]],
    color: str,
    label: str | None = None,
    line: str = "-",
    marker: str = "o",
    hollow: bool = False,
) -> None:
    """Draw every (place, value) as a faint dot, and a line through the mean at each place.

    Args:
        line: its style; "" for marks that nothing ties.
        hollow: whether the marks of the means are rings.
    """
    groups: dict[float, list[float]] = {}
    for place, value in points:
        groups.setdefault(place, []).append(value)
    if not groups:
        return
    each = [(place, value) for place, values in groups.items() for value in values]
    axes.scatter(*zip(*each, strict=True), s=8, color=color, alpha=0.35, linewidths=0)
    places = sorted(groups)
    means = [intervals.mean(groups[place]) for place in places]
    style: Any = {"markersize": 4.5 if hollow else 3.5, "linewidth": 1.2, "linestyle": line or "none"}
    style |= {"markerfacecolor": palette.GROUND} if hollow else {}
    axes.plot(places, means, color=color, marker=marker, label=label, **style)


def zero_line(axes: "Axes") -> None:
    """Mark zero where the values come near it: a line far from them would flatten them."""
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if low - 0.5 * (high - low) <= 0.0 <= high + 0.5 * (high - low):
        axes.axhline(0.0, color=palette.RULE, linewidth=0.8, zorder=1)


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
    canvas.text(0.04 / width, 0.04 / (height + strip), "\n".join(lines), fontsize=6, color=palette.SOFT, va="bottom")


def _csv(rows: Sequence[Row]) -> bytes:
    stream = io.StringIO()
    if rows:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return stream.getvalue().encode()
