"""EBT, figure B.4: the best of two and of ten over training, and where a line would lead."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, palette
from paper_repro.artifacts.claims import Judgement, Place
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.metrics.lines import Line, fit_line
from paper_repro.papers.ebt.learning import NOT_RUN, S2
from paper_repro.papers.ebt.thinking import (
    ThinkingTable,
    above,
    difference,
    grids,
    mean_gain,
    most,
    trained_tokens,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

FEW, MANY = 2, 10
FURTHER = 1000
"""By how much Llama 3's data exceed the paper's."""
LINES = {FEW: "--", MANY: "-"}
PLACES_OF_THE_LINE = 25


class TableB4(ThinkingTable):
    """Gains of verification, and the projection."""

    def summary(self) -> dict[str, float]:
        rows = _rows(self.view)
        line = _line(rows)
        if line is None:
            return {}
        far = math.log10(FURTHER * max(row["tokens"] for row in rows))
        low, high = line.mean_interval(far)
        found = {"projected": line.at(far), "projected_low": low, "projected_high": high}
        return {name: value for name, value in found.items() if math.isfinite(value)}


class FigureB4(figures.Figure):
    """Panel a: measured. Panel b: the line through the best of ten, dashed where nothing was measured."""

    size = (10.0, 4.0)
    marks = "Faint dots: seeds; marks and lines left: means over seeds; band: 95 % interval of the line."

    def rows(self) -> list[Row]:
        measured = _rows(self.view)
        line = _line(measured)
        if line is None:
            return measured
        tokens = [row["tokens"] for row in measured]
        ends = math.log10(min(tokens)), math.log10(FURTHER * max(tokens))
        steps = [ends[0] + (ends[1] - ends[0]) * step / (PLACES_OF_THE_LINE - 1) for step in range(PLACES_OF_THE_LINE)]
        found = []
        for x in sorted([*steps, math.log10(max(tokens))]):
            low, high = (round(value, 8) if math.isfinite(value) else "" for value in line.mean_interval(x))
            beyond = 10**x > max(tokens) * 1.0001
            kind = "extrapolated" if beyond else "fitted"
            values = {"gain": round(line.at(x), 8), "low": low, "high": high}
            found.append({"kind": kind, "samples": MANY, "tokens": round(10**x), "seed": "", **values})
        return [*measured, *found]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        left, right = canvas.subplots(1, 2)
        measured = [row for row in rows if row["kind"] == "measured"]
        color = palette.model(self.artifact.id, S2)
        for samples, line in LINES.items():
            own = [(row["tokens"], row["gain"]) for row in measured if row["samples"] == samples]
            figures.seeds_and_mean(left, own, color, f"EBT, best of {samples}", line, hollow=samples == FEW)
        many = [row for row in measured if row["samples"] == MANY]
        right.scatter([row["tokens"] for row in many], [row["gain"] for row in many], s=8, color=color, alpha=0.35)
        _draw_line(right, [row for row in rows if row["kind"] != "measured"], color)
        left.set(xlabel="training tokens", ylabel="perplexity gained over one sample (%)", title="measured")
        right.set(xlabel="training tokens", title="EXTRAPOLATION beyond the solid line")
        right.set_ylabel(f"the same for {MANY} samples (%)")
        for axes in (left, right) if measured else ():
            figures.zero_line(axes)
            axes.set_xscale("log")
        if measured:
            figures.log_ticks(left.xaxis)
            right.xaxis.set_major_formatter(left.xaxis.get_major_formatter())


def judge_less_adversarial_with_data(view: View) -> Judgement:
    """Judge the slope of what ten samples gain beyond two, over the logarithm of training tokens."""
    rows, slopes = _rows(view), dict[int, float]()
    for seed in sorted({row["seed"] for row in rows}):
        few, many = (
            {row["tokens"]: row["gain"] for row in rows if (row["seed"], row["samples"]) == (seed, samples)}
            for samples in (FEW, MANY)
        )
        added = difference(many, few)
        if len(added) > 1:
            slopes[seed] = fit_line([math.log10(tokens) for tokens in added], list(added.values())).slope
    if not slopes:
        return NOT_RUN
    return above(slopes, what="slope", unit=" points for ten times the tokens")


def _place(length: str) -> Place:
    return {"model": S2, "length": length}


def _rows(view: View) -> list[Row]:
    found = []
    for length in view.artifact.axes["length"].values:
        for seed, grid in grids(view, _place(length)).items():
            steps = most(grid).steps
            for samples in sorted(LINES.keys() & {at.samples for at in grid}):
                gain = round(mean_gain(grid, (steps, 1), (steps, samples)), 8)
                tokens = trained_tokens(view, _place(length))
                row = {"kind": "measured", "samples": samples, "tokens": tokens, "seed": seed, "gain": gain}
                found.append({**row, "low": "", "high": ""})
    return found


def _line(rows: Sequence[Row]) -> Line | None:
    many = [row for row in rows if row["samples"] == MANY]
    if len({row["tokens"] for row in many}) < 2:
        return None
    return fit_line([math.log10(row["tokens"]) for row in many], [row["gain"] for row in many])


def _draw_line(axes: "Axes", rows: Sequence[Row], color: str) -> None:
    fitted = [row for row in rows if row["kind"] == "fitted"]
    beyond = fitted[-1:] + [row for row in rows if row["kind"] == "extrapolated"]
    for part, style, label in (
        (fitted, "-", "line through the best of 10"),
        (beyond, ":", "extrapolation"),
    ):
        if part:
            points = [row["tokens"] for row in part], [row["gain"] for row in part]
            axes.plot(*points, style, color=color, linewidth=2, label=label)
    if beyond and all(row["low"] != "" for row in beyond):
        low, high = ([row[end] for row in beyond] for end in ("low", "high"))
        axes.fill_between([row["tokens"] for row in beyond], low, high, color=color, alpha=0.15, linewidth=0)
