"""nGPT, figure 5 with 10, 11 and 12: condition numbers by layer; vectors and singular values of single layers."""

from collections.abc import Iterator, Sequence

from paper_repro.papers.ngpt import inspection
from paper_repro.papers.ngpt.inspection import InspectionFigure, Series
from paper_repro.tables import claims, plots
from paper_repro.tables.figure import Canvas, Row
from paper_repro.tables.view import View

ATTENTION = {"query": "$W_q$", "key": "$W_k$", "value": "$W_v$", "output": "$W_o$"}
MATRICES = {**ATTENTION, "u": "$W_u$", "nu": r"$W_\nu$", "mlp_output": r"$W_{oMLP}$"}
KINDS = {"plain": "-", "renormalized": ":"}
HISTOGRAMS = {"norms": "norm of a vector along D", "singular": "singular value of a head's slice"}
COLUMNS = 4


class Figure5(InspectionFigure):
    """Condition numbers against the layer, dotted after renormalising; histograms of single layers in the appendix."""

    attachment = "matrices.json"
    size = (12.0, 5.0)
    marks = "Marks and lines: means over seeds. Above: attention, below: MLP."

    def appendix(self) -> "Appendix5":
        return Appendix5(self.view)

    def rows_of(self, series: Series) -> Iterator[Row]:
        for kind, matrices in series.content["conditions"].items():
            for matrix, values in matrices.items():
                for layer, value in enumerate(values, start=1):
                    yield _row(f"condition {kind}", matrix, layer, {"low": layer, "high": layer, "value": value})

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        shades = inspection.colors(self.series)
        panels = canvas.subplots(2, COLUMNS, sharey="row")
        for axes, (matrix, title) in zip(panels.flat, MATRICES.items(), strict=False):
            for kind, line in KINDS.items():
                own = [row for row in rows if (row["quantity"], row["matrix"]) == (f"condition {kind}", matrix)]
                inspection.draw_curve(axes, own, shades, line)
            axes.set(yscale="log", title=title)
            inspection.count_layers(axes)
        for line in panels:
            line[0].set_ylabel("condition number")
            inspection.plain_ticks(line[0].yaxis)
        panels[1][-1].set_visible(False)
        panels[0][0].plot([], [], KINDS["renormalized"], color=plots.RULE, label="after making vectors along D unit")


class Appendix5(InspectionFigure):
    """Histograms of the layers inspected, a line for each layer and quantity."""

    stem, is_appendix = "figure_appendix", True
    attachment = "matrices.json"
    marks = "Outlines: histograms, the mean over seeds of the share in each bin."

    def rows_of(self, series: Series) -> Iterator[Row]:
        for layer, matrices in series.content["layers"].items():
            for matrix, found in matrices.items():
                for quantity in HISTOGRAMS:
                    for row in inspection.bins(series.content["edges"], found[quantity]):
                        yield _row(quantity, matrix, int(layer), row)

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        shades = inspection.colors(self.series)
        lines = [(layer, quantity) for layer in sorted({row["layer"] for row in rows}) for quantity in HISTOGRAMS]
        canvas.set_size_inches(12.0, max(2.5, 2.3 * len(lines)))
        panels = canvas.subplots(max(1, len(lines)), COLUMNS, squeeze=False, sharey="row")
        for line, (layer, quantity) in zip(panels, lines, strict=False):
            for axes, (matrix, title) in zip(line, ATTENTION.items(), strict=True):
                place = (quantity, matrix, layer)
                own = [row for row in rows if (row["quantity"], row["matrix"], row["layer"]) == place]
                inspection.draw_bins(axes, own, shades)
                axes.set(xscale="log", title=f"{title}, layer {layer}", xlabel=HISTOGRAMS[quantity])
                inspection.plain_ticks(axes.xaxis)
            line[0].set_ylabel("share")


def _row(quantity: str, matrix: str, layer: int, row: Row) -> Row:
    return {"quantity": quantity, "matrix": matrix, "layer": layer, **row}


def estimate_condition_numbers(view: View) -> claims.Estimate:
    """Return the condition number of GPT's attention matrices, as trained and with unit vectors, over nGPT's."""
    name = "condition_attention"
    found = inspection.sides(view, {"as trained": (name, name), "vectors made unit": (f"{name}_renormalized", name)})
    return claims.ratio("condition number of GPT's attention matrices", "condition number of nGPT's", found)
