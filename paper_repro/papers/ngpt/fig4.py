"""nGPT, figure 4: norms, eigenvalues and dot products of the embeddings."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.papers.ngpt.inspection import (
    InspectionFigure,
    Series,
    bins,
    colors,
    draw_bins,
    draw_curve,
    in_every_model,
    label_powers,
    within,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

TABLES = {"in": "input", "out": "output"}
UNIT = 1e-6
"""Largest |norm - 1| of rows projected in float32."""
VARIES = 0.01
"""Standard deviation of the norms over their mean, above which norms vary; ours, the paper names no number."""


class Figure4(InspectionFigure):
    """Input table above, output table below; norms, sorted eigenvalues over their median, dot products of rows."""

    attachment = "embeddings.json"
    size = (11.0, 5.6)
    margins = figures.Margins(left=0.62, right=0.1, top=0.1, bottom=0.48, across=0.72, down=0.55)

    def rows_of(self, series: Series) -> Iterator[Row]:
        edges = series.content["edges"]
        for table in TABLES:
            found = series.content[table]
            for row in bins(edges["norm"], found["norms"]):
                yield {"table": table, "quantity": "norm", **row}
            count = len(found["eigenvalues"])
            for index, value in enumerate(found["eigenvalues"]):
                ranks = {"low": round(index / count, 6), "high": round((index + 1) / count, 6)}
                yield {"table": table, "quantity": "eigenvalue", **ranks, "value": value}
            for row in bins(edges["dot"], found["dots"]):
                yield {"table": table, "quantity": "dot", **row}

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        panels, shades = canvas.subplots(len(TABLES), 3), colors(self.series)
        for line, (table, title) in zip(panels, TABLES.items(), strict=True):
            own = {name: [row for row in rows if (row["table"], row["quantity"]) == (table, name)] for name in _PANELS}
            draw_bins(line[0], own["norm"], shades)
            draw_curve(line[1], own["eigenvalue"], shades)
            draw_bins(line[2], own["dot"], shades, density=True)
            _label(line, title)


_PANELS = ("norm", "eigenvalue", "dot")


def _label(line: "Sequence[Axes]", title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    line[0].set(xscale="log", xlabel="norm", ylabel=f"share of the {title} embeddings")
    line[1].set(yscale="log", xlabel="rank over width", ylabel=f"{title}: eigenvalue over the median")
    line[2].set(yscale="log", xlabel="dot product of two rows", ylabel="density of the pairs")
    line[2].xaxis.set_major_locator(MaxNLocator(5))
    label_powers(line[0].xaxis)
    label_powers(line[1].yaxis)


def judge_embedding_norms_fixed(view: View) -> Judgement:
    """Judge whether nGPT's rows have norm 1 in every trained model, and GPT's vary in the mean over seeds."""
    parts = []
    for size, spec in view.artifact.axes["size"].values.items():
        for table, title in TABLES.items():
            ngpt, gpt = {"size": size, "model": "ngpt"}, {"size": size, "model": "gpt"}
            if view.covers(ngpt):
                found = in_every_model(view, f"{table}_norm_error", ngpt, UNIT)
                parts.append((f"{spec.label}, nGPT, {title}: largest |norm - 1|", found))
            if view.covers(gpt):
                found = within(view, f"{table}_norm_variation", gpt, VARIES, math.inf)
                parts.append((f"{spec.label}, GPT, {title}: standard deviation of norms over their mean", found))
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "the scale has no such cells")
