"""Figures: rows of a CSV, and axes drawn from these rows alone; the same records give the same bytes."""

import csv
import io
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paper_repro.artifacts import intervals, made_of, palette, printed_numbers
from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.floor_marks import FloorLine, draw_floors, floor_lines
from paper_repro.artifacts.floors import OTHERS, whose
from paper_repro.artifacts.printed_numbers import PrintedNumber
from paper_repro.artifacts.views import View
from paper_repro.base.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

Row = dict[str, Any]

TICK_CHARACTER = 6.0
"""Points that a character of a tick's number takes, with some air."""
COARSE, FINE, FEWEST_TICKS = (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), 3
"""Ticks of a logarithmic axis within a power of ten."""
DOTS_PER_INCH = 160
FOOTER_LINE, FOOTER_CHARACTER = 0.1, 0.05
"""Inches: the height of a line of the footer, and the width of one of its characters (at most, on average)."""
LEGEND_FONT, LEGEND_LINE, LEGEND_HANDLE, LEGEND_CHARACTER = 8, 0.18, 0.48, 0.062
"""Points; inches: the height of a line, the width of a handle with the space around it, and that of a character."""
LABEL_BELOW, LABEL_ASIDE = 0.24, 0.46
"""Inches from a panel to the labels of its axes, where its figure has margins of its own."""
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titley": 1.0,  # no ticks and no factor of an axis stand above: else titles measure them at each drawing
    "grid.alpha": 0.25,
    "figure.facecolor": palette.GROUND,
    "legend.frameon": False,
    "svg.hashsalt": "paper_repro",
    "svg.fonttype": "none",
}


class Margins(NamedTuple):
    """Inches around the panels of an even grid, and between them."""

    left: float
    right: float
    top: float
    bottom: float
    across: float
    down: float


class Figure(ABC):
    """One figure; the Python file beside the artifact's YAML holds a subclass.

    Its labelled artists go into one legend above the panels, and the line below says scale, data, seeds and what the
    marks are.  Floors and the paper's numbers are drawn by the base, see ``floors`` and ``printed``.
    """

    stem = "figure"
    """The name of its files without their ending."""
    marks = ""
    """What dots, lines and bars are, in a sentence or two; every artifact's figure says it."""
    legend = True
    """Whether what is labelled gets a legend; False where the panels name what they show."""
    legend_title: str | None = None
    floors_drawn: tuple[str, ...] = ()
    """The floors that ``draw`` itself shows, by name."""
    size: tuple[float, float] = (7.0, 4.0)
    """Width and height in inches."""
    metric: str | None = None
    """The metric on the vertical axis, whose floors are drawn as lines; None where no panel shows one."""
    printed_words = ""
    """What the line below says of the paper's numbers that are drawn; nothing: that they are the paper's."""
    without_line = "On no axis here"
    """Why the floors that the line below names have no line."""
    panels: slice = slice(None)
    """The panels that show it."""
    margins: Margins | None = None
    """Given for a grid of many panels: to ask each what its ticks and labels take costs as much as to draw them."""

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
            told += [printed_numbers.sentence(self.view, self.printed(rows), self.printed_words), self._absent_floors()]
        return " ".join(part for part in told if part)

    def _absent_floors(self) -> str:
        """Name the floors that have no line, with their numbers."""
        lines = {line.label for line in self.floors()}
        absent: list[tuple[str, str, str]] = []
        units = dict[str, None]()
        for floor in (floor for floor in self.view.floors if floor.plan.name not in self.floors_drawn):
            metrics = {
                name: self.artifact.metrics[name] for name in floor.spec.metrics if name in self.artifact.metrics
            }
            texts = []
            for name, metric in metrics.items() if floor.spec.label not in lines else ():
                if found := floor.samples(name):
                    units[metric.unit] = None
                    texts.append(f"{metric.title} {intervals.mean(list(found.values())) / metric.factor:.4g}")
            if floor.spec.label not in lines and texts:
                absent.append((floor.spec.label, whose(self.view, floor.plan), ", ".join(texts)))
        several = {label for label, _, text in absent if any(one[0] == label and one[2] != text for one in absent)}
        named = [(f"{label}, {whose}" if label in several else label, text) for label, whose, text in absent]
        named.sort(key=lambda one: one[0].endswith(OTHERS))
        listed = "; ".join(dict.fromkeys(f"{name} ({text})" for name, text in named))
        if not absent:
            return ""
        return f"{self.without_line}: the floor{'s' * (len(absent) > 1)} {listed}; in {' and '.join(units)}."

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
            layout: Any = "none" if self.margins else "constrained"
            canvas = Canvas(figsize=self.size, dpi=DOTS_PER_INCH, layout=layout)
            pixels = FigureCanvasAgg(canvas)
            self.draw(canvas, rows)
            for axes in canvas.axes:
                axes.minorticks_off()
                _place_empty_labels(axes)
            printed_numbers.draw(canvas.axes, shown)
            draw_floors(canvas.axes[self.panels], lines)
            legend = _draw_legend(canvas, self.legend_title, shown) if self.legend else 0.0
            below = _write_below(canvas, self.footer(rows))
            if self.margins:
                _arrange(canvas, self.margins, legend, below)
            else:
                canvas.get_layout_engine().set(rect=(0, below, 1, 1 - below))  # type: ignore[union-attr, call-arg]
            # Not savefig, which draws each format once more to measure it.
            pixels.print_png(png, metadata={"Software": None})
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


def _place_empty_labels(axes: "Axes") -> None:
    """Give a place to the axis labels without text: for others all tick labels are measured at each drawing."""
    for axis in (axes.xaxis, axes.yaxis):
        if not axis.get_label_text():
            axis.set_label_coords(0.0, 0.0)


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


def _draw_legend(canvas: "Canvas", title: str | None, printed: Sequence[PrintedNumber]) -> float:
    """Draw one legend above all panels, each label once, the paper's numbers last; return its height in inches."""
    found: dict[str, Any] = {}
    for axes in canvas.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if printed:
        found[printed_numbers.LABEL] = printed_numbers.legend_entry(printed)
    if not found:
        return 0.0
    width = LEGEND_HANDLE + LEGEND_CHARACTER * max(map(len, found))
    columns = max(1, min(len(found), int(float(canvas.get_figwidth()) / width)))
    style: Any = {"fontsize": LEGEND_FONT, "title_fontsize": LEGEND_FONT, "columnspacing": 1.2, "borderaxespad": 0.2}
    style |= {"alignment": "left", "ncols": columns, "title": title}
    place: Any = "upper left" if canvas.get_layout_engine() is None else "outside upper left"
    canvas.legend(list(found.values()), list(found), loc=place, **style)
    return LEGEND_LINE * (math.ceil(len(found) / columns) + bool(title))


def _arrange(canvas: "Canvas", margins: Margins, legend: float, below: float) -> None:
    """Set out an even grid of panels below a legend, in inches, and above a share of the figure for the footer."""
    width, height = (float(inches) for inches in canvas.get_size_inches())
    grid = canvas.axes[0].get_gridspec()
    assert grid is not None
    top, bottom = margins.top + legend, margins.bottom + below * height
    across = (width - margins.left - margins.right - (grid.ncols - 1) * margins.across) / grid.ncols
    down = (height - top - bottom - (grid.nrows - 1) * margins.down) / grid.nrows
    canvas.subplots_adjust(
        left=margins.left / width,
        right=1 - margins.right / width,
        top=1 - top / height,
        bottom=bottom / height,
        wspace=margins.across / across,
        hspace=margins.down / down,
    )
    for axes in canvas.axes:  # for a label without a place all ticks are set once more at each drawing
        axes.xaxis.set_label_coords(0.5, -LABEL_BELOW / down)
        axes.yaxis.set_label_coords(-LABEL_ASIDE / across, 0.5)


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
    x, y = zip(*each, strict=True)
    axes.scatter(x, y, s=8, color=color, alpha=0.35, linewidths=0)
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
    """Ticks at 1, 2 and 5 times the powers of ten of a logarithmic axis, and between these where few lie in its range;
    written 2k, 5M.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    ends = sorted(float(end) for end in axis.get_view_interval())
    powers = range(math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1])) + 1) if ends[0] > 0 else ()
    shown = [factor for power in powers for factor in COARSE if ends[0] <= factor * 10.0**power <= ends[1]]
    axis.set_major_locator(LogLocator(subs=COARSE if len(shown) >= FEWEST_TICKS else FINE))
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_formatter(NullFormatter())


def ticks_at(axes: "Axes", settings: Iterable[float]) -> None:
    """Put a tick at each setting of a logarithmic horizontal axis, with its number where that touches no other."""
    places = sorted({*settings})
    low, high = sorted(math.log(end) for end in axes.get_xlim())
    width = 72.0 * float(axes.get_window_extent().width) / axes.figure.dpi
    labels, free = [], -math.inf
    for place in places:
        middle, half = width * (math.log(place) - low) / (high - low), TICK_CHARACTER * len(f"{place:g}") / 2
        labels.append(f"{place:g}" if middle - half > free else "")
        free = middle + half if labels[-1] else free
    axes.set_xticks(places, labels=labels)
    axes.set_xticks([], minor=True)


def _write_below(canvas: "Canvas", text: str) -> float:
    """Make the figure higher by a strip below all that is drawn, write a text into it, and return its share of the
    height.

    A legend "outside lower" would lie on it: figures have theirs above.
    """
    if not text:
        return 0.0
    width, height = (float(inches) for inches in canvas.get_size_inches())
    lines = textwrap.wrap(text, max(20, int(width / FOOTER_CHARACTER)))
    strip = FOOTER_LINE * len(lines) + 0.06
    canvas.set_size_inches(width, height + strip)
    place = 0.04 / width, 0.04 / (height + strip)
    canvas.text(*place, "\n".join(lines), fontsize=6, color=palette.SOFT, va="bottom")
    return strip / (height + strip)


def _csv(rows: Sequence[Row]) -> bytes:
    stream = io.StringIO()
    if rows:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return stream.getvalue().encode()
