"""nGPT, figure 4: norms, eigenvalues and dot products of the embeddings."""

from collections.abc import Iterator, Sequence

from paper_repro.papers.ngpt import inspection
from paper_repro.papers.ngpt.inspection import InspectionFigure, Series
from paper_repro.tables import claims
from paper_repro.tables.figure import Canvas, Row
from paper_repro.tables.view import View

TABLES = {"in": "input", "out": "output"}
PANELS = {"norm": "norms", "eigenvalue": "eigenvalues of the covariance", "dot": "dot products of pairs"}


class Figure4(InspectionFigure):
    """Input table above, output table below; norms, sorted eigenvalues over their median, dot products of rows."""

    attachment = "embeddings.json"
    size = (11.0, 5.6)

    def rows_of(self, series: Series) -> Iterator[Row]:
        edges = series.content["edges"]
        for table in TABLES:
            found = series.content[table]
            for row in inspection.bins(edges["norm"], found["norms"]):
                yield {"table": table, "quantity": "norm", **row}
            count = len(found["eigenvalues"])
            for index, value in enumerate(found["eigenvalues"]):
                ranks = {"low": round(index / count, 6), "high": round((index + 1) / count, 6)}
                yield {"table": table, "quantity": "eigenvalue", **ranks, "value": value}
            for row in inspection.bins(edges["dot"], found["dots"]):
                yield {"table": table, "quantity": "dot", **row}

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        from matplotlib.ticker import MaxNLocator

        panels, shades = canvas.subplots(len(TABLES), len(PANELS)), inspection.colors(self.series)
        for line, (table, title) in zip(panels, TABLES.items(), strict=True):
            norms, values, dots = (
                [row for row in rows if (row["table"], row["quantity"]) == (table, name)] for name in PANELS
            )
            inspection.draw_bins(line[0], norms, shades)
            inspection.draw_curve(line[1], values, shades)
            inspection.draw_bins(line[2], dots, shades, density=True)
            line[0].set(xscale="log", xlabel="norm of a row", ylabel=f"{title} embeddings\nshare of the rows")
            line[1].set(yscale="log", xlabel="rank over width", ylabel="eigenvalue / median")
            line[2].set(yscale="log", xlabel="dot product of two rows", ylabel="density")
            line[2].xaxis.set_major_locator(MaxNLocator(5))
            inspection.plain_ticks(line[0].xaxis)
            inspection.plain_ticks(line[1].yaxis)
        for axes, name in zip(panels[0], PANELS.values(), strict=True):
            axes.set_title(name)


def estimate_embedding_norms_fixed(view: View) -> claims.Estimate:
    """Return the standard deviation of the norms over their mean: that of GPT less that of nGPT, for both tables."""
    metrics = {title: (f"{table}_norm_variation",) * 2 for table, title in TABLES.items()}
    of = "standard deviation of the embeddings' norms over their mean in GPT"
    return claims.difference(of, "the same in nGPT", inspection.sides(view, metrics))


def estimate_embedding_conditioning(view: View) -> claims.Estimate:
    """Return the spread of eigenvalues of GPT's input embeddings over that of nGPT's, for both measures of it."""
    metrics = {"95th percentile / median": ("in_spread_95",) * 2, "largest / median": ("in_spread_max",) * 2}
    return claims.ratio(
        "eigenvalue spread of GPT's input embeddings", "eigenvalue spread of nGPT's", inspection.sides(view, metrics)
    )
