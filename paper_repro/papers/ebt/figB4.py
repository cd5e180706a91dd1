"""EBT, figure B.4: the best of two and of ten over training, and where a line would lead."""

import math
from collections.abc import Sequence

from paper_repro.metrics.fits import Line, fit_line
from paper_repro.papers.ebt.learning import S2
from paper_repro.papers.ebt.thinking import grids, longest, mean_gain, trained_tokens
from paper_repro.tables import claims, plots
from paper_repro.tables.figure import Axes, Canvas, Figure, Row
from paper_repro.tables.table import Table
from paper_repro.tables.view import View

FEW, MANY = 2, 10
FURTHER = 1000
"""How many times the paper's data Llama 3 has."""
LINES = {FEW: "--", MANY: "-"}
PLACES_OF_THE_LINE = 25


class TableB4(Table):
    """Gains of verification, and the projection."""

    def summary(self) -> dict[str, float]:
        rows = _rows(self.view)
        if (line := _line(rows)) is None:
            return {}
        far = math.log10(FURTHER * max(row["tokens"] for row in rows))
        low, high = line.mean_interval(far)
        found = {"projected": line.at(far), "projected_low": low, "projected_high": high}
        return {name: value for name, value in found.items() if math.isfinite(value)}


class FigureB4(Figure):
    """Panel a: measured. Panel b: the line through the best of ten, dotted where nothing was measured."""

    size = (10.0, 4.0)
    marks = "Faint dots: seeds; marks and lines left: means over seeds; band: 95 % interval of the line."

    def rows(self) -> list[Row]:
        measured = _rows(self.view)
        if (line := _line(measured)) is None:
            return measured
        tokens = [row["tokens"] for row in measured]
        start, end, seen = math.log10(min(tokens)), math.log10(FURTHER * max(tokens)), math.log10(max(tokens))
        steps = [start + (end - start) * step / (PLACES_OF_THE_LINE - 1) for step in range(PLACES_OF_THE_LINE)]
        found = []
        for x in sorted([*steps, seen]):
            low, high = (round(value, 8) if math.isfinite(value) else "" for value in line.mean_interval(x))
            kind = "extrapolated" if 10**x > max(tokens) * 1.0001 else "fitted"
            row = {"kind": kind, "samples": MANY, "tokens": round(10**x), "seed": "", "gain": round(line.at(x), 8)}
            found.append({**row, "low": low, "high": high})
        return [*measured, *found]

    def draw(self, canvas: Canvas, rows: Sequence[Row]) -> None:
        left, right = canvas.subplots(1, 2)
        color = self.color(S2)
        measured, fitted, beyond = (
            [row for row in rows if row["kind"] == kind] for kind in ("measured", "fitted", "extrapolated")
        )
        for samples, style in LINES.items():
            own = [(row["tokens"], row["gain"]) for row in measured if row["samples"] == samples]
            plots.seeds_and_mean(left, own, color, f"EBT, best of {samples}", style, hollow=samples == FEW)
        many = [row for row in measured if row["samples"] == MANY]
        right.scatter([row["tokens"] for row in many], [row["gain"] for row in many], s=8, color=color, alpha=0.35)
        parts = ((fitted, "-", "line through the best of 10"), (fitted[-1:] + beyond, ":", "extrapolation"))
        for part, style, label in parts if beyond else ():
            right.plot([row["tokens"] for row in part], [row["gain"] for row in part], style, color=color, label=label)
        band = [row for row in fitted[-1:] + beyond if row["low"] != ""]
        sides = ([row[end] for row in band] for end in ("low", "high"))
        right.fill_between([row["tokens"] for row in band], *sides, color=color, alpha=0.15, linewidth=0)
        left.set(xlabel="training tokens", ylabel="perplexity gained over one sample (%)", title="measured")
        right.set(xlabel="training tokens", title="EXTRAPOLATION beyond the solid line")
        right.set_ylabel(f"the same for {MANY} samples (%)")
        for axes in (left, right) if measured else ():
            _zero_line(axes)
            axes.set_xscale("log")
        if measured:
            plots.log_ticks(left.xaxis)
            right.xaxis.set_major_formatter(left.xaxis.get_major_formatter())


def _zero_line(axes: Axes) -> None:
    """Mark zero where the values come near it: a line far from them would flatten them."""
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if low - 0.5 * (high - low) <= 0.0 <= high + 0.5 * (high - low):
        axes.axhline(0.0, color=plots.RULE, linewidth=0.8, zorder=1)


def estimate_less_adversarial_with_data(view: View) -> claims.Estimate:
    """The slope of the gain of ten samples less that of two over the decimal logarithm of training tokens."""
    added: dict[int, dict[int, float]] = {}
    for row in _rows(view):
        own = added.setdefault(row["seed"], {})
        own[row["tokens"]] = own.get(row["tokens"], 0.0) + (row["gain"] if row["samples"] == MANY else -row["gain"])
    slopes = {
        seed: fit_line([math.log10(tokens) for tokens in own], list(own.values())).slope
        for seed, own in added.items()
        if len(own) > 1
    }
    of = f"gain of the best of {MANY} less that of {FEW}, slope"
    return claims.number(of, {"": slopes}, unit="points for ten times the tokens")


def _rows(view: View) -> list[Row]:
    found = []
    for length in view.artifact.axes["length"].values:
        place = {"model": S2, "length": length}
        for seed, grid in grids(view, place).items():
            for samples in sorted(LINES.keys() & {at.samples for at in grid}):
                gain = round(mean_gain(grid, longest(grid), (longest(grid)[0], samples)), 8)
                row = {"kind": "measured", "samples": samples, "tokens": trained_tokens(view, place), "seed": seed}
                found.append({**row, "gain": gain, "low": "", "high": ""})
    return found


def _line(rows: Sequence[Row]) -> Line | None:
    many = [row for row in rows if row["samples"] == MANY]
    if len({row["tokens"] for row in many}) < 2:
        return None
    return fit_line([math.log10(row["tokens"]) for row in many], [row["gain"] for row in many])
