"""nGPT, figure 6 with 14: eigen learning rates and scaling factors by layer, and their histograms over four sweeps."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import catalogue, intervals, tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.printed_numbers import PrintedNumber
from paper_repro.artifacts.views import View
from paper_repro.papers.ngpt.inspection import (
    InspectionFigure,
    Series,
    bins,
    colors,
    count_layers,
    draw_bins,
    draw_curve,
    within,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BASE = "base"
PRINTED_FOR = {"small": "0.5B", "large": "1B"}
SIZES = (BASE, "size_1b")
"""The runs of figure 6; the others, named after what they change, are of figure 14."""
VECTORS = {
    "alpha_A": "|alpha_A|",
    "alpha_M": "|alpha_M|",
    "s_qk": "s_qk",
    "s_u": "s_u",
    "s_nu": "s_nu",
    "s_z": "s_z",
}
BY_LAYER = {"alpha_A": "-", "alpha_M": "--"}, {"s_u": "-", "s_nu": "--"}, {"s_qk": "-", "|s_qk|": "--"}
SCALES = (1, "s_u"), (1, "s_nu"), (2, "s_qk"), (3, "s_z")
"""The panels of the scaling factors of which the paper prints a mean."""
VARIED = {BASE: "", "lr": "learning rate"}
"""What a sweep varies, where the beginning of its runs' names does not say it."""
MODEST = (0.1, 0.4)
STABLE = 1.5
"""Largest layer's mean |s_qk| over the smallest's, up to which it is stable; ours, the paper names no number."""


class Steps(tables.Table):
    """The mean eigen learning rates that the text prints, of the two runs of figure 6."""

    def summary(self) -> dict[str, float]:
        found = {}
        for run, size in zip(SIZES, ("small", "large"), strict=True):
            for vector in ("alpha_A", "alpha_M"):
                if samples := self.view.samples(f"mean_{vector}", {"run": run}):
                    found[f"{vector}_{size}"] = intervals.mean(list(samples.values()))
        return found


class Figure6(InspectionFigure):
    """Means by layer, and s_z; the histograms of figure 14 in the appendix."""

    attachment = "scales.json"
    size = (12.0, 3.6)
    marks = "Marks, lines and the outline of s_z: means over seeds; the paper's number of s_z is a mean over tokens."

    def appendix(self) -> "Appendix6":
        return Appendix6(self.source, self.series)

    def rows_of(self, series: Series) -> Iterator[Row]:
        run = series.place.get("run", BASE)
        if run not in SIZES:
            return
        for vector, values in series.content["means"].items():
            for layer, value in enumerate(values, start=1):
                curve = {"low": layer, "high": layer, "value": value}
                yield {"run": run, "quantity": "mean", "vector": vector, "layer": layer, **curve}
        yield from (row for row in _histograms(series) if row["vector"] == "s_z")

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        """Return the printed means of the runs that the scale has, which have no unit: the text's eigen learning rates,
        and the scaling factors of Table 5, for the base alone.
        """
        if not hasattr(self, "view"):
            return []
        found, drawn = [], {row["run"] for row in rows}
        if BASE in drawn:
            table, of = catalogue.load("ngpt/table5"), f"of {PRINTED_FOR['small']}, Table 5"
            for panel, vector in SCALES:
                printed = table.printed((("setting", "default"),), f"mean_{vector}")
                assert printed is not None
                upright = vector == "s_z"
                found.append(PrintedNumber(f"{vector} {of}", printed.mean, "pure number", panel, upright=upright))
        for run, size in zip(SIZES, ("small", "large"), strict=True):
            for vector in ("alpha_A", "alpha_M"):
                number = self.artifact.summary[f"{vector}_{size}"].published
                if number is not None and run in drawn:
                    found.append(PrintedNumber(f"{VECTORS[vector]} of {PRINTED_FOR[size]}", number, "pure number"))
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        panels, shades = canvas.subplots(1, len(BY_LAYER) + 1), colors(self.series)
        for axes, vectors in zip(panels, BY_LAYER, strict=False):
            for vector, line in vectors.items():
                own = [row for row in rows if (row["quantity"], row["vector"]) == ("mean", vector)]
                draw_curve(axes, own, shades, line)
            styles = {"-": "solid", "--": "dashed"}
            axes.set_title(", ".join(f"{VECTORS.get(name, name)} {styles[line]}" for name, line in vectors.items()))
            count_layers(axes)
        panels[0].set_ylabel("mean over the vector")
        draw_bins(panels[-1], [row for row in rows if row["quantity"] == "histogram"], shades, density=True)
        panels[-1].set(title="s_z, density", xlabel="s_z")


class Appendix6(InspectionFigure):
    """Every vector's histogram, a column for each sweep."""

    stem = "figure_appendix"
    attachment = "scales.json"
    size = (12.0, 13.0)
    marks = (
        "Outlines: histograms, the mean over seeds of the density in each bin; a column for each thing that is varied."
    )

    def rows_of(self, series: Series) -> Iterator[Row]:
        return _histograms(series)

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        shades = colors(self.series)
        sweeps = dict.fromkeys(row["run"].partition("_")[0] for row in rows if row["run"] != BASE) or {BASE: None}
        panels = canvas.subplots(len(VECTORS), len(sweeps), squeeze=False)
        for line, (vector, title) in zip(panels, VECTORS.items(), strict=True):
            for axes, sweep in zip(line, sweeps, strict=True):
                runs = [row for row in rows if row["vector"] == vector]
                draw_bins(axes, [row for row in runs if row["run"].partition("_")[0] in (BASE, sweep)], shades, True)
                axes.set(xlabel=title, ylabel="density" if axes is line[0] else "")
                axes.locator_params(nbins=4)
                axes.grid(False)
        for axes, sweep in zip(panels[0], sweeps, strict=True):
            axes.set_title(VARIED.get(sweep, sweep))


def _histograms(series: Series) -> Iterator[Row]:
    """Yield the bins of a series' vectors."""
    run = series.place.get("run", BASE)
    for vector, found in series.content["shares"].items():
        for row in bins(series.content["edges"][vector], found):
            yield {"run": run, "quantity": "histogram", "vector": vector, "layer": "", **row}


def judge_modest_steps(view: View) -> Judgement:
    """Return both mean eigen learning rates between 0.1 and 0.4, and alpha_M's above alpha_A's, in figure 6's runs."""
    parts = []
    for run in SIZES:
        if not view.covers({"run": run}):
            continue
        label = view.artifact.axes["run"].values[run].label
        for vector in ("alpha_A", "alpha_M"):
            parts.append((f"{label}: mean {vector}", within(view, f"mean_{vector}", {"run": run}, *MODEST)))
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "the scale has no such cells")


def judge_sqk_stable(view: View) -> Judgement:
    """Return the ratio of the layers' extreme means of |s_qk| at most 1.5, in every run."""
    parts = []
    for key in view.points:
        place = dict(key)
        label = view.artifact.axes["run"].values[place["run"]].label
        parts.append((label, within(view, "sqk_spread", place, 0.0, STABLE, ratio=True)))
    return combine(parts, FAILS, HOLDS) if parts else Judgement(UNDECIDED, "the scale has no such cells")
