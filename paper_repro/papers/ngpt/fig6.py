"""nGPT, figure 6 with 14: eigen learning rates and scaling factors by layer, and their histograms over four sweeps."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paper_repro.papers.ngpt import inspection
from paper_repro.papers.ngpt.inspection import InspectionFigure, Series
from paper_repro.tables import claims, plots, spec, stats, table
from paper_repro.tables.figure import Axes, Canvas, PrintedNumber, Row
from paper_repro.tables.view import View

BASE = "base"
PRINTED_FOR = {BASE: ("0.5B", "small"), "size_1b": ("1B", "large")}
"""The runs of figure 6, with the size of the paper that each stands for; figure 14 has the others."""
RATES = {"alpha_A": "attention", "alpha_M": "MLP"}
PANELS = {
    "eigen learning rates": {"alpha_A": r"$|\alpha_A|$, attention", "alpha_M": r"$|\alpha_M|$, MLP"},
    "scales of the MLP": {"s_u": "$s_u$", "s_nu": r"$s_\nu$"},
    "scale of attention": {"s_qk": "$s_{qk}$", "|s_qk|": "$|s_{qk}|$"},
    "scale of the logits": {"s_z": "$s_z$"},
}
"""The vectors of each panel with their names."""
NAMES = {vector: name for vectors in PANELS.values() for vector, name in vectors.items()}
COLORS = {
    vector: color for own in PANELS.values() for vector, color in zip(own, (plots.BLUE, plots.VERMILION), strict=False)
}
LINES = ("-", "--")
VARIED = {BASE: "", "lr": "learning rate"}
"""The setting that a sweep varies, where the beginning of its runs' names does not say it."""


class Steps(table.Table):
    """The mean eigen learning rates that the text prints, of the two runs of figure 6."""

    def summary(self) -> dict[str, stats.Samples]:
        runs = [(vector, run, size) for run, (_, size) in PRINTED_FOR.items() for vector in RATES]
        return {f"{vector}_{size}": self.view.samples(f"mean_{vector}", {"run": run}) for vector, run, size in runs}


class Figure6(InspectionFigure):
    """Means by layer, and s_z; the histograms of figure 14 in the appendix."""

    attachment = "scales.json"
    size = (12.0, 3.6)
    marks = "Marks, lines and the outline on the right: means over seeds."

    def appendix(self) -> "Appendix6":
        return Appendix6(self.view)

    def rows_of(self, series: Series) -> Iterator[Row]:
        run = series.place["run"]
        if run not in PRINTED_FOR:
            return
        for vector, values in series.content["means"].items():
            for layer, value in enumerate(values, start=1):
                curve = {"low": layer, "high": layer, "value": value}
                yield {"run": run, "quantity": "mean", "vector": vector, "layer": layer, **curve}
        yield from (row for row in _histograms(series) if row["vector"] == "s_z")

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        found, drawn = [], {row["run"] for row in rows}
        ablation = spec.load("ngpt/table5") if BASE in drawn else None
        for panel, vectors in enumerate(PANELS.values()):
            for vector in vectors:
                number = ablation and ablation.printed((("setting", "default"),), f"mean_{vector}")
                if panel and number:
                    one = PrintedNumber(f"{vector} of 0.5B, Table 5", number.mean, "pure number", panel)
                    found.append(replace(one, upright=vector == "s_z", color=COLORS[vector]))
        for (run, (label, size)), vector in itertools.product(PRINTED_FOR.items(), RATES):
            printed = self.artifact.summary[f"{vector}_{size}"].published if run in drawn else None
            if printed is not None:
                found.append(PrintedNumber(f"|{vector}| of {label}", printed, "pure number", color=COLORS[vector]))
        return found

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        panels = canvas.subplots(1, len(PANELS))
        styles = dict(zip(inspection.by_series(rows), itertools.cycle(LINES), strict=False))
        for axes, (title, vectors) in zip(panels, PANELS.items(), strict=True):
            for vector in vectors:
                for label, own in inspection.by_series(row for row in rows if row["vector"] == vector).items():
                    _draw_vector(axes, own, COLORS[vector], styles[label])
            if len(vectors) > 1:
                handles = [axes.plot([], [], color=COLORS[vector])[0] for vector in vectors]
                axes.legend(handles, list(vectors.values()), fontsize=8)
            axes.set_title(title)
        for label, line in styles.items():
            panels[0].plot([], [], line, color=plots.INK, label=label)
        panels[0].set_ylabel("mean over the vector")
        panels[-1].set(xlabel=NAMES["s_z"], ylabel="density")


def _draw_vector(axes: Axes, rows: Sequence[Row], color: str, line: str) -> None:
    """Draw the mean of a vector by layer; of s_z, which no layer has, the histogram."""
    means = [row for row in rows if row["quantity"] == "mean"]
    if means[0]["vector"] == "s_z":
        shown = [row for row in rows if row["quantity"] == "histogram"]
        inspection.draw_bins(axes, shown, {row["series"]: color for row in shown}, density=True)
    else:
        points = [row["layer"] for row in means], [row["value"] for row in means]
        axes.plot(*points, line, color=color, marker="o", markersize=3, linewidth=1.2)
        inspection.count_layers(axes)


class Appendix6(InspectionFigure):
    """Every vector's histogram, a column for each sweep."""

    stem, is_appendix = "figure_appendix", True
    attachment = "scales.json"
    size = (12.0, 13.0)
    marks = "Outlines: histograms, the mean over seeds of the density in each bin; a column for each setting varied."

    def rows_of(self, series: Series) -> Iterator[Row]:
        return _histograms(series)

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        shades = inspection.colors(self.series)
        sweeps = dict.fromkeys(row["run"].partition("_")[0] for row in rows if row["run"] != BASE) or {BASE: None}
        vectors = [vector for vector in NAMES if vector != "|s_qk|"]
        panels = canvas.subplots(len(vectors), len(sweeps), squeeze=False)
        for line, vector in zip(panels, vectors, strict=True):
            for axes, sweep in zip(line, sweeps, strict=True):
                runs = [row for row in rows if row["vector"] == vector]
                inspection.draw_bins(
                    axes, [row for row in runs if row["run"].partition("_")[0] in (BASE, sweep)], shades, True
                )
                axes.set(xlabel=NAMES[vector], ylabel="density" if axes is line[0] else "")
                axes.locator_params(nbins=4)
                axes.grid(False)
        for axes, sweep in zip(panels[0], sweeps, strict=True):
            axes.set_title(VARIED.get(sweep, sweep))


def _histograms(series: Series) -> Iterator[Row]:
    """Yield the bins of a series' vectors."""
    run = series.place["run"]
    for vector, found in series.content["shares"].items():
        for row in inspection.bins(series.content["edges"][vector], found):
            yield {"run": run, "quantity": "histogram", "vector": vector, "layer": "", **row}


def estimate_modest_steps(view: View) -> claims.Estimate:
    """Return the mean of the eigen learning rates of attention and MLP, in the runs of figure 6."""
    runs = [run for run in PRINTED_FOR if view.places(run=run)]
    labels = {run: view.label("run", run) for run in runs}
    parts = {f"{labels[run]}, {RATES[v]}": view.samples(f"mean_{v}", {"run": run}) for run in runs for v in RATES}
    return claims.number("mean eigen learning rate", parts)
