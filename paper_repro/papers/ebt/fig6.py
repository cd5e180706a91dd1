"""EBT, figure 6: the gain of thinking over the shift of the distribution."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.derived import gain
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.floor_marks import BEHIND
from paper_repro.artifacts.views import View
from paper_repro.metrics.lines import fit_line
from paper_repro.papers.ebt.learning import NOT_RUN, S2
from paper_repro.papers.ebt.thinking import (
    VALIDATION,
    VALIDATION_LOSS,
    At,
    Seeds,
    ThinkingTable,
    above,
    fewest,
    foreign,
    grids,
    most,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PLACE = {"model": S2}
KINDS = {"longer": "thinking longer", "best": "longer, with self-verification"}


class Table6(ThinkingTable):
    """Losses of every set, and the slope of the gain."""

    def summary(self) -> dict[str, float]:
        found = {"slope": slopes(self.view, math.log2), "linear_slope": slopes(self.view, float)}
        return {name: intervals.mean(list(values.values())) for name, values in found.items() if values}


class Figure6(figures.Figure):
    """Each set of each seed a dot, the means over seeds larger; the line is fitted to the means."""

    size = (6.4, 4.0)
    marks = (
        "Faint dots: seeds; rings and discs: means over seeds of each set; lines: fits to the means, a broad dashed "
        "one to the rings and a thin one to the discs."
    )

    def rows(self) -> list[Row]:
        return [row for seed, rows in _points(self.view).items() for row in rows]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        color = palette.model(self.artifact.id, S2)
        for kind, label in KINDS.items():
            axes.scatter([row["shift"] for row in rows], [row[kind] for row in rows], s=8, color=color, alpha=0.35)
            means = {name: _means(rows, name, kind) for name in dict.fromkeys(row["set"] for row in rows)}
            if not means:
                continue
            shifts, gains = zip(*means.values(), strict=True)
            size, face = (20, color) if kind == "best" else (70, palette.GROUND)
            style: Any = {"linewidth": 1.0} if kind == "best" else {"linewidth": 4.0, "linestyle": "--", "alpha": 0.4}
            axes.scatter(shifts, gains, s=size, color=face, edgecolors=color, label=f"EBT, {label}", zorder=3)
            line = None
            if len(means) > 1 and len(set(shifts)) > 1:
                line = fit_line([math.log2(shift) for shift in shifts], gains)
                ends = [min(shifts), max(shifts)]
                axes.plot(ends, [line.at(math.log2(end)) for end in ends], color=color, **style)
            center = intervals.mean([height for _, height in means.values()])
            for name, (shift, height) in means.items() if kind == "best" else ():
                above = height > (line.at(math.log2(shift)) if line is not None else center)
                side: Any = {"xytext": (0, 7 if above else -8), "va": "bottom" if above else "top", "ha": "center"}
                if name == VALIDATION:  # its dots stand above and below it, where the shift is one
                    side = {"xytext": (9, 0), "va": "center", "ha": "left"}
                axes.annotate(name, means[name], textcoords="offset points", fontsize=7, bbox=BEHIND, **side)
        figures.zero_line(axes)
        axes.set(xlabel="perplexity over that of validation", ylabel="perplexity gained (%)")
        if rows:
            axes.set_xscale("log")
            figures.log_ticks(axes.xaxis)
            axes.margins(x=0.12)


def judge_thinking_more_ood(view: View) -> Judgement:
    """Judge the slope of the gain over the logarithm of the shift."""
    found = slopes(view, math.log2)
    if not found:
        return NOT_RUN
    return above(found, what="slope", unit=" points for each doubling")


def slopes(view: View, scaled: Callable[[float], float]) -> Seeds:
    """Return the slope of the gain of maximal thinking over the scaled shift, by seed."""
    found = {}
    for seed, rows in _points(view).items():
        shifts = [scaled(row["shift"]) for row in rows]
        if len(set(shifts)) > 1:
            found[seed] = fit_line(shifts, [row["best"] for row in rows]).slope
    return found


def _points(view: View) -> dict[int, list[Row]]:
    """Return shift and gains of every set, by seed."""
    known, found = view.samples(VALIDATION_LOSS, PLACE), dict[int, list[Row]]()
    for seed, grid in grids(view, PLACE).items():
        first, last = fewest(grid), most(grid)
        for name in (VALIDATION, *foreign(grid)):
            trained = view.samples(f"{name}_loss", PLACE)[seed]
            before = grid[At(name, first, 1)].loss
            gains = {
                "longer": gain(before, grid[At(name, last.steps, 1)].loss),
                "best": gain(before, grid[At(name, last.steps, last.samples)].loss),
            }
            shift = round(math.exp(trained - known[seed]), 8)
            row = {
                "set": name,
                "seed": seed,
                "shift": shift,
                **{kind: round(value, 8) for kind, value in gains.items()},
            }
            found.setdefault(seed, []).append(row)
    return found


def _means(rows: Sequence[Row], name: str, kind: str) -> tuple[float, float]:
    own = [row for row in rows if row["set"] == name]
    return intervals.mean([row["shift"] for row in own]), intervals.mean([row[kind] for row in own])
