"""nGPT, figure 5 with 10, 11 and 12: condition numbers by layer; vectors and singular values of single layers."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts.figures import Row
from paper_repro.papers.ngpt.inspection import (
    InspectionFigure,
    Series,
    bins,
    colors,
    count_layers,
    draw_bins,
    draw_curve,
    label_powers,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

ATTENTION = {"query": "W_q", "key": "W_k", "value": "W_v", "output": "W_o"}
MATRICES = {**ATTENTION, "u": "W_u", "nu": "W_nu", "mlp_output": "W_oMLP"}
KINDS = {"plain": "-", "renormalized": ":"}
HISTOGRAMS = {"norms": "norm of a vector along D", "singular": "singular value of a head's slice"}
COLUMNS = 4


class Figure5(InspectionFigure):
    """Condition numbers against the layer, dotted after renormalising; below, histograms of the layers inspected."""

    attachment = "matrices.json"

    def rows_of(self, series: Series) -> Iterator[Row]:
        for kind, matrices in series.content["conditions"].items():
            for matrix, values in matrices.items():
                for layer, value in enumerate(values, start=1):
                    yield _row(f"condition {kind}", matrix, layer, {"low": layer, "high": layer, "value": value})
        for layer, matrices in series.content["layers"].items():
            for matrix, found in matrices.items():
                for quantity in HISTOGRAMS:
                    for row in bins(series.content["edges"], found[quantity]):
                        yield _row(quantity, matrix, int(layer), row)

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        layers = sorted({row["layer"] for row in rows if row["quantity"] in HISTOGRAMS})
        lines, shades = 2 + len(HISTOGRAMS) * len(layers), colors(rows)
        canvas.set_size_inches(12.0, 2.5 * lines)
        panels = canvas.subplots(lines, COLUMNS)
        for index, (matrix, title) in enumerate(MATRICES.items()):
            axes = panels[index // COLUMNS][index % COLUMNS]
            for kind, line in KINDS.items():
                own = [row for row in rows if (row["quantity"], row["matrix"]) == (f"condition {kind}", matrix)]
                draw_curve(axes, own, shades, line)
            axes.set(yscale="log", title=title, ylabel="" if index % COLUMNS else "condition number")
            label_powers(axes.yaxis)
            count_layers(axes)
        panels[1][-1].axis("off")
        if rows:
            handles, labels = panels[0][0].get_legend_handles_labels()
            count = len(shades)  # the solid lines come first
            title = "dotted: vectors along D made unit"
            panels[1][-1].legend(handles[:count], labels[:count], title=title, loc="center")
        below = [(layer, quantity) for layer in layers for quantity in HISTOGRAMS]
        for line, (layer, quantity) in zip(panels[2:], below, strict=True):
            for axes, (matrix, title) in zip(line, ATTENTION.items(), strict=True):
                place = (quantity, matrix, layer)
                own = [row for row in rows if (row["quantity"], row["matrix"], row["layer"]) == place]
                draw_bins(axes, own, shades)
                axes.set(xscale="log", title=f"{title}, layer {layer}", xlabel=HISTOGRAMS[quantity])
                label_powers(axes.xaxis)
            line[0].set_ylabel("share")


def _row(quantity: str, matrix: str, layer: int, row: Row) -> Row:
    return {"quantity": quantity, "matrix": matrix, "layer": layer, **row}
