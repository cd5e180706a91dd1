"""EBT, figure 6: the gain of thinking over the shift of the distribution."""

import math
from collections.abc import Callable, Sequence

from paper_repro.metrics.fits import fit_line
from paper_repro.papers.ebt import thinking
from paper_repro.papers.ebt.learning import S2
from paper_repro.tables import claims, plots, stats
from paper_repro.tables.figure import Canvas, Figure, Row
from paper_repro.tables.spec import gain
from paper_repro.tables.stats import Samples
from paper_repro.tables.table import Table
from paper_repro.tables.view import View

PLACE = {"model": S2}
KINDS = {"longer": "thinking longer", "best": "longer, with self-verification"}
MARKERS = "osD^vPX*h"
"""One for each set, in the order of the probe."""


class Table6(Table):
    """Losses of every set, and the slope of the gain."""

    def summary(self) -> dict[str, Samples]:
        return {"slope": slopes(self.view, math.log2), "linear_slope": slopes(self.view, float)}


class Figure6(Figure):
    """A panel each for thinking longer and for verification beside it; a set has its own marker in both."""

    size = (8.0, 3.8)
    marks = "Faint: seeds; full: means over seeds of each set; lines: fits to the means."

    def rows(self) -> list[Row]:
        return [row for rows in _points(self.view).values() for row in rows]

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        color = self.color(S2)
        names = list(dict.fromkeys(row["set"] for row in rows))
        panels = canvas.subplots(1, len(KINDS), sharey=True)
        for axes, (kind, title) in zip(panels, KINDS.items(), strict=True):
            means = []
            for name, marker in zip(names, MARKERS, strict=False):
                shifts, gains = ([row[column] for row in rows if row["set"] == name] for column in ("shift", kind))
                means.append((stats.mean(shifts), stats.mean(gains)))
                axes.scatter(shifts, gains, s=12, color=color, marker=marker, alpha=0.35, linewidths=0)
                axes.scatter(*means[-1], s=45, color=color, marker=marker, label=name, zorder=3)
            if len({shift for shift, _ in means}) > 1:
                line = fit_line([math.log2(shift) for shift, _ in means], [height for _, height in means])
                ends = [min(means)[0], max(means)[0]]
                axes.plot(ends, [line.at(math.log2(end)) for end in ends], color=color, linewidth=1.0)
                axes.set_xscale("log")
                plots.log_ticks(axes.xaxis)
            axes.set(xlabel="perplexity over that of validation", title=title)
        panels[0].set_ylabel("perplexity gained over one step (%)")


def estimate_thinking_more_ood(view: View) -> claims.Estimate:
    """The slope of the gain over the binary logarithm of the shift: a fit over sets for each seed."""
    return claims.number("gain of thinking, slope", {"": slopes(view, math.log2)}, unit="points for each doubling")


def slopes(view: View, scaled: Callable[[float], float]) -> Samples:
    """Return the slope of the gain of maximal thinking over the scaled shift, by seed."""
    found = {}
    for seed, rows in _points(view).items():
        shifts = [scaled(row["shift"]) for row in rows]
        if len(set(shifts)) > 1:
            found[seed] = fit_line(shifts, [row["best"] for row in rows]).slope
    return found


def _points(view: View) -> dict[int, list[Row]]:
    """Return shift and gains of every set, by seed."""
    known, found = view.samples(thinking.VALIDATION_LOSS, PLACE), dict[int, list[Row]]()
    for seed, grid in thinking.grids(view, PLACE).items():
        for name in (thinking.VALIDATION, *thinking.foreign(grid)):
            shift = math.exp(view.samples(f"{name}_loss", PLACE)[seed] - known[seed])
            before, longer, best = (
                grid[thinking.At(name, *at(grid))].loss for at in (thinking.first, thinking.longest, thinking.verified)
            )
            gains = {"longer": round(gain(before, longer), 8), "best": round(gain(before, best), 8)}
            found.setdefault(seed, []).append({"set": name, "seed": seed, "shift": round(shift, 8), **gains})
    return found
