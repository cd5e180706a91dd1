"""Figures: rows of a CSV, and axes drawn from these rows alone; the same records give the same bytes.

The headline stands above a figure, scale, data and seeds below it.  Trivial baselines are dotted lines.  The paper's
numbers are diamonds and dash-dotted lines; they are drawn where ours have the same unit: at a comparable scale always,
at a reduced one if the unit means the same with any data and size of model (``EVERYWHERE``).
"""

import io
import json
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.base.files import write_atomically
from paper_repro.tables import plots, stats
from paper_repro.tables.spec import EXACT, Artifact
from paper_repro.tables.view import View, csv_text, data_of, size_of

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

    Axes = matplotlib.axes.Axes
    Canvas = matplotlib.figure.Figure
else:  # matplotlib takes most of a second to import
    Axes = Canvas = Any

Row = dict[str, Any]
DOTS_PER_INCH = 160
LINE, CHARACTER, LEGEND_LINE = 0.12, 0.055, 0.19  # inches: heights of lines of text and legend, width of a character
EVERYWHERE = ("%", "share", "parameters", "ratio", "pure number")
"""Beginnings of units that do not depend on the data or on the size of the models."""
FLATTENS = 1.0
"""A baseline further from the data than so many times their span gets no line but a number at the edge."""
MOST_MARKS = 2000
PAPER_LINE: Any = {"linestyle": "-.", "linewidth": 1.0}
PAPER_MARK: Any = {"marker": "D", "markersize": 4.5, "markerfacecolor": plots.GROUND, "markeredgewidth": 1.1}
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.facecolor": plots.GROUND,
    "legend.frameon": False,
    "svg.hashsalt": "paper_repro",
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class BaselineLine:
    """A trivial baseline as a figure draws it."""

    label: str
    value: float
    panel: int | None = None
    """The index of its panel; None: in every one."""


@dataclass(frozen=True)
class PrintedNumber:
    """A number of the paper: a point if it has a place, else a line across its panel."""

    label: str
    value: float
    unit: str
    panel: int = 0
    at: float | None = None
    """Its place on the other axis; None: a line."""
    std: float | None = None
    upright: bool = False
    """Whether it is read on the horizontal axis."""
    color: str = plots.PAPER
    tied: bool = True
    """Whether a line ties it to the others of its label."""


class Figure(ABC):
    """One figure; the Python file beside the artifact's YAML holds a subclass."""

    stem = "figure"  # of its files' names
    is_appendix = False
    marks = "Faint dots: seeds; marks and lines: means over seeds."
    """Describes dots, lines and bars in a sentence or two."""
    legend = True
    legend_title: str | None = None
    size: tuple[float, float] = (7.0, 4.0)  # inches
    metric: str | None = None
    """The metric on the vertical axis, whose baselines are drawn as lines."""
    printed_words = ""
    """The sentence about the paper's numbers that are drawn, if not the usual one."""
    panels: slice = slice(None)
    """The panels that show the metric."""

    def __init__(self, view: View, headline: str = "") -> None:
        self.view = view
        self.artifact: Artifact = view.artifact
        self.headline = headline

    @abstractmethod
    def rows(self) -> list[Row]:
        """Return all that is drawn, as the rows of figure.csv (every row with the same keys)."""

    @abstractmethod
    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        """Draw ``rows``, and nothing that is not in them."""

    def color(self, model: str) -> str:
        return plots.model(self.artifact.id, model)

    def appendix(self) -> "Figure | None":
        """Return the figure of what the main one leaves out, with a ``stem`` of its own."""
        return None

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        """Return the paper's numbers that belong to this figure."""
        return []

    def baselines(self) -> list[BaselineLine]:
        """Return the lines of trivial baselines; a figure whose panels differ in data gives each line its panel."""
        return [] if self.metric is None else baseline_lines(self.view, self.metric)

    def footer(self, rows: Sequence[Row]) -> str:
        """Return the text below the figure: scale, data, size, seeds; its marks; the paper's numbers."""
        parts = [f"{_origin(self.view, rows)}.", self.marks]
        numbers = self.printed(rows) if rows else []
        shown = drawable(self.view, numbers)
        hidden = [one for one in numbers if one not in shown]
        if shown:
            own = "" if self.view.plan.scale.comparable else ", of its own scale"
            parts.append(self.printed_words or f"Diamonds and dash-dotted lines: the paper's numbers{own}.")
        if hidden:
            units = " and ".join(dict.fromkeys(one.unit for one in hidden))
            parts.append(f"The table has the paper's numbers in {units} of its own data.")
        return " ".join(part for part in parts if part)

    def write(self, folder: Path) -> list[Path]:
        from matplotlib import rc_context, rcdefaults, rcParams
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas

        rows = self.rows()
        lines = self.baselines() if rows else []
        printed = self.printed(rows) if rows else []
        shown = drawable(self.view, printed) if printed else []
        png, svg = io.BytesIO(), io.BytesIO()
        with rc_context():
            rcdefaults()  # a user's own style must not change the bytes
            rcParams.update(STYLE)
            canvas = Canvas(figsize=self.size, dpi=DOTS_PER_INCH, layout="constrained")
            pixels = FigureCanvasAgg(canvas)
            self.draw(canvas, rows)
            for axes in canvas.axes:
                axes.minorticks_off()
            _draw_printed(canvas.axes, shown)
            _draw_baselines(canvas.axes[self.panels], lines)
            entries = _legend_entries(canvas, bool(shown)) if self.legend else {}
            _write_around(canvas, self.headline, self.footer(rows), entries, self.legend_title)
            pixels.print_png(png, metadata={"Software": None})
            canvas.set_layout_engine("none")
            _round_places(canvas)
            marks = json.dumps(_marks(canvas), separators=(",", ":"))
            FigureCanvasSVG(canvas).print_svg(svg, metadata={"Date": None, "Creator": None, "Description": marks})
        beside: list[Row] = [{"baseline": line.label, "baseline_value": line.value} for line in lines]
        beside += [{"paper": one.label, "paper_value": one.value} for one in printed]
        table = csv_text([*rows, *beside]) if rows else ""
        contents = {".csv": table.encode(), ".png": png.getvalue(), ".svg": svg.getvalue()}
        for ending, content in contents.items():
            write_atomically(folder / f"{self.stem}{ending}", content)
        other = self.appendix()
        return [folder / f"{self.stem}{ending}" for ending in contents] + (other.write(folder) if other else [])


def figure_of(view: View, headline: str = "") -> Figure | None:
    """Return the figure of the kind that the YAML names or a Python file beside it defines; None for none."""
    kind: type[Figure] | None = view.artifact.kind(view.artifact.figure, Figure)
    return None if kind is None else kind(view, headline)


def baseline_lines(
    view: View, metric: str, place: Mapping[str, str] | None = None, panel: int | None = None
) -> list[BaselineLine]:
    """Return the means of a metric's baselines, one for each data of the models at a (partial) place."""
    found = []
    for one in view.baselines:
        here = [key for key in one.keys if (place or {}).items() <= dict(key).items()]
        values = one.samples(metric) if here else {}
        if values:
            found.append(BaselineLine(one.spec.label, round(stats.mean(list(values.values())), 8), panel))
    return list(dict.fromkeys(found))


def panel_lines(view: View, panels: Iterable[tuple[str, Mapping[str, str] | None]]) -> list[BaselineLine]:
    """Return the baselines of panels, each given by its metric and a (partial) place of its models."""
    return [line for i, (metric, place) in enumerate(panels) for line in baseline_lines(view, metric, place, i)]


def drawable(view: View, numbers: Sequence[PrintedNumber]) -> list[PrintedNumber]:
    """Return the paper's numbers that have the unit of ours."""
    return [one for one in numbers if view.plan.scale.comparable or one.unit.startswith(EVERYWHERE)]


def _origin(view: View, rows: Sequence[Row]) -> str:
    drawn = {row["seed"] for row in rows if isinstance(row.get("seed"), int)}
    by_setting = [set(found) for point in view.points.values() if (found := view.judged(point))]
    ran = set().union(*by_setting)
    fewest = min(map(len, by_setting), default=0)
    told = f"{fewest} to {len(ran)}" if fewest < len(ran) else str(len(ran))
    if 0 < len(drawn) < len(ran):
        told = f"{len(drawn)} of {len(ran)}"
    seeds = f"{told} seed{'s' if len(ran) > 1 else ''}" if ran else "no seed has run"
    parts = [f"{view.artifact.id}, scale {view.plan.scale_name}", data_of(view), size_of(view)]
    return "; ".join(part for part in [*parts, "" if view.plan.scale_name == EXACT else seeds] if part)


def _draw_printed(panels: Sequence[Axes], numbers: Sequence[PrintedNumber]) -> None:
    groups: dict[tuple[int, str], list[PrintedNumber]] = {}
    for one in numbers:
        axes = panels[one.panel]
        if one.at is not None:
            groups.setdefault((one.panel, one.label), []).append(one)
        elif one.upright:
            axes.axvline(one.value, color=one.color, **PAPER_LINE)
        else:
            axes.axhline(one.value, color=one.color, **PAPER_LINE)
            if one.color == plots.PAPER:  # no model's colour says whose number it is
                _label(axes, one.label, one.value, "left", plots.PAPER)
    for (panel, _), group in groups.items():
        style = {**PAPER_MARK, "color": group[0].color, **(PAPER_LINE if group[0].tied else {"linestyle": "none"})}
        x, y = [one.at or 0.0 for one in group], [one.value for one in group]
        errors = [one.std or 0.0 for one in group]
        panels[panel].errorbar(x, y, errors if any(errors) else None, capsize=2, **style)


def _draw_baselines(panels: Sequence[Axes], lines: Sequence[BaselineLine]) -> None:
    """Draw baselines as dotted lines; those far from the data as numbers at the edge."""
    for index, axes in enumerate(panels):
        own = [line for line in lines if line.panel in (None, index) and axes.axison]
        low, high = _reach(axes)
        near = [line for line in own if low <= line.value <= high]
        for line in near:
            axes.axhline(line.value, color=plots.BASELINE, linestyle=":", linewidth=1.2)
        heights: list[float] = []
        for line in sorted(near, key=lambda line: line.value):
            height = axes.transData.transform((0.0, line.value))[1]
            if all(abs(height - other) > 9 * DOTS_PER_INCH / 72 for other in heights):
                heights.append(height)
                _label(axes, line.label, line.value, "right", plots.BASELINE)
        for above in (False, True):
            far = [line for line in own if (line.value > high if above else line.value < low)]
            texts = dict.fromkeys(f"{line.label} {line.value:.3g}, {'above' if above else 'below'}" for line in far)
            if texts:
                place: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": 6}
                place |= {"xy": (0, above), "xytext": (2, -2 if above else 2), "va": "top" if above else "bottom"}
                axes.annotate("\n".join(texts), color=plots.BASELINE, **place).set_in_layout(False)


def _reach(axes: Axes) -> tuple[float, float]:
    """Return the values between which a baseline gets a line: the data, widened by ``FLATTENS`` times their span."""
    if not axes.get_autoscaley_on():
        low, high = sorted(axes.get_ylim())
        return low, high
    is_log = axes.get_yscale() == "log"
    low, high = float(axes.dataLim.minposy if is_log else axes.dataLim.y0), float(axes.dataLim.y1)
    if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
        return -math.inf, math.inf
    if is_log:
        return low / (high / low) ** FLATTENS, high * (high / low) ** FLATTENS
    return low - FLATTENS * (high - low), high + FLATTENS * (high - low)


def _label(axes: Axes, text: str, value: float, side: str, color: str) -> None:
    place: Any = {"xy": (float(side == "right"), value), "xycoords": axes.get_yaxis_transform(), "ha": side}
    shift = (-2, 2) if side == "right" else (2, 2)
    axes.annotate(text, xytext=shift, textcoords="offset points", fontsize=6, color=color, **place).set_in_layout(False)


def _legend_entries(canvas: Canvas, printed: bool) -> dict[str, Any]:
    from matplotlib.lines import Line2D

    found: dict[str, Any] = {}
    for axes in canvas.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found | ({"paper": Line2D([], [], color=plots.PAPER, **PAPER_LINE, **PAPER_MARK)} if printed else {})


def _write_around(canvas: Canvas, headline: str, footer: str, entries: Mapping[str, Any], title: str | None) -> None:
    """Make a figure higher by its headline and legend above and its footer below, and draw these."""
    width, height = (float(inches) for inches in canvas.get_size_inches())
    above = textwrap.wrap(headline, max(20, int(width / (1.3 * CHARACTER))))
    below = textwrap.wrap(footer, max(20, int(width / CHARACTER)))
    columns = max(1, min(len(entries), int(width / (0.5 + 0.065 * max(map(len, entries), default=0)))))
    legend = LEGEND_LINE * (math.ceil(len(entries) / columns) + bool(title and entries))
    top, bottom = (LINE * len(lines) + 0.06 * bool(lines) for lines in (above, below))
    whole = height + top + legend + bottom
    canvas.set_size_inches(width, whole)
    left = 0.04 / width
    canvas.text(left, 1 - 0.03 / whole, "\n".join(above), fontsize=7, color=plots.INK, va="top", weight="bold")
    canvas.text(left, 0.04 / whole, "\n".join(below), fontsize=6, color=plots.SOFT, va="bottom")
    if entries:
        place: Any = {"loc": "upper left", "bbox_to_anchor": (0.0, 1 - top / whole), "ncols": columns}
        style: Any = {"title": title, "fontsize": 8, "title_fontsize": 8, "alignment": "left", "borderaxespad": 0.2}
        canvas.legend(list(entries.values()), list(entries), **place, **style)
    canvas.get_layout_engine().set(rect=(0, bottom / whole, 1, height / whole))  # type: ignore[union-attr, call-arg]


def _round_places(canvas: Canvas) -> None:
    """Round where panels lie: the solver of the layout leaves other last bits each time."""
    for part in canvas.subfigs:
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(6))
    for axes in canvas.axes:
        left, bottom, width, height = (round(bound, 6) for bound in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def _marks(canvas: Canvas) -> dict[str, Any]:
    """Return the marks of lines and dots for a page: places in points from the upper left, label and values."""
    from matplotlib.collections import PathCollection

    width, height = (72 * float(inches) for inches in canvas.get_size_inches())
    scale, found = 72 / canvas.dpi, list[list[Any]]()
    for axes in canvas.axes:
        clouds = [cloud for cloud in axes.collections if isinstance(cloud, PathCollection)]
        drawn: list[tuple[Any, Any]] = [(cloud, cloud.get_offsets()) for cloud in clouds]
        drawn += [(line, line.get_xydata()) for line in axes.lines if line.get_transform() == axes.transData]
        for label, x, y in ((str(one.get_label()), float(x), float(y)) for one, places in drawn for x, y in places):
            across, up = axes.transData.transform((x, y)) * scale
            if 0 <= across <= width and 0 <= up <= height:  # not where one is no number
                place = round(float(across), 1), round(height - float(up), 1)
                found.append([*place, "" if label.startswith("_") else label, f"{x:.4g}", f"{y:.4g}"])
    return {"width": round(width, 1), "height": round(height, 1), "marks": found if len(found) <= MOST_MARKS else []}
