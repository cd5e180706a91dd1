"""Figures: rows of a CSV, and axes drawn from these rows alone; the same records give the same bytes."""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.views import View
from paper_repro.base.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

Row = dict[str, Any]

PAPER_COLOR, REFERENCE_COLOR, OWN_COLOR = "#222222", "#E08214", "#2166AC"
DOTS_PER_INCH = 160
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


class Figure(ABC):
    """One figure; the Python file beside the artifact's YAML holds a subclass."""

    size: tuple[float, float] = (7.0, 4.0)
    """Width and height in inches."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.artifact: Artifact = view.artifact

    @abstractmethod
    def rows(self) -> list[Row]:
        """Return all that is drawn, as the rows of figure.csv (every row with the same keys)."""

    @abstractmethod
    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        """Draw ``rows``, and nothing that is not in them."""

    def write(self, folder: Path) -> list[Path]:
        """Write figure.csv, .png and .svg into ``folder``."""
        from matplotlib import rc_context, rcdefaults, rcParams
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas

        rows = self.rows()
        contents = {"figure.csv": _csv(rows)}
        png, svg = io.BytesIO(), io.BytesIO()
        with rc_context():
            rcdefaults()  # a user's own style must not change the bytes
            rcParams.update(STYLE)
            canvas = Canvas(figsize=self.size, dpi=DOTS_PER_INCH, layout="constrained")
            self.draw(canvas, rows)
            # Not savefig, which draws each format once more to measure it.
            FigureCanvasAgg(canvas).print_png(png, metadata={"Software": None})
            canvas.set_layout_engine("none")
            FigureCanvasSVG(canvas).print_svg(svg, metadata={"Date": None, "Creator": None})
        contents |= {"figure.png": png.getvalue(), "figure.svg": svg.getvalue()}
        for name, content in contents.items():
            write_atomically(folder / name, content)
        return [folder / name for name in contents]


def log_ticks(axis: "Axis") -> None:
    """Ticks at 1, 2 and 5 times the powers of ten of a logarithmic axis, written 2k, 5M."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_formatter(NullFormatter())


def _csv(rows: Sequence[Row]) -> bytes:
    stream = io.StringIO()
    if rows:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return stream.getvalue().encode()
