"""EBT, figure B.6: PSNR over forward passes, at the noise of training and at more."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, palette
from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, Place, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.floor_marks import FloorLine, floor_lines
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.denoising import DIT, EBT, LEVELS, Passed, passed
from paper_repro.papers.ebt.learning import MARKS
from paper_repro.papers.ebt.thinking import above, difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SHARE = 0.01
"""Share of DiT's evaluations that EBT may take."""
PAPER_PASSES = {"in": 1, "out": 3}
"""Passes at each level, as the paper takes them."""
STYLES = {
    "ebt": ("ebt", "-", "EBT, passes of one step"),
    "dit": ("dit", "-", "DiT, passes through every time"),
    "dit_short": ("dit", ":", "DiT, one pass through some times"),
}


class FigureB6(figures.Figure):
    """One panel for each level of noise."""

    size = (10.0, 4.0)
    marks = MARKS

    def rows(self) -> list[Row]:
        rows = []
        for level in LEVELS:
            for place in (EBT, DIT):
                whole = _whole(self.view, place, level)
                for one in passed(self.view, place):
                    series = place["model"] if one in whole else "dit_short"
                    if one.level == level:
                        rows.append(_row(level, series, one.evaluations, one.seed, one.psnr))
        return rows

    def floors(self) -> list[FloorLine]:
        """Return the floors of each level in its panel."""
        each = [floor_lines(self.view, f"{level}_psnr", None, panel) for panel, level in enumerate(LEVELS)]
        return [line for lines in each for line in lines]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        for axes, (level, label) in zip(canvas.subplots(1, 2), LEVELS.items(), strict=True):
            _draw_panel(axes, [row for row in rows if row["level"] == level])
            axes.set(xlabel="evaluations of the network", ylabel=f"PSNR (dB), {label}")
            if rows:
                axes.set_xscale("log")
                figures.log_ticks(axes.xaxis)


def judge_fewer_passes_for_a_psnr(view: View) -> Judgement:
    """Judge EBT's best PSNR within 1 % of DiT's evaluations against DiT's, level by level.

    DiT takes one pass through every time at the noise of training, and three at more noise, as in the paper's table.
    """
    parts = []
    for level, count in PAPER_PASSES.items():
        whole = {one.seed: one for one in _whole(view, DIT, level) if one.passes == count}
        few = {
            seed: max((one.psnr for one in _whole(view, EBT, level) if _within(one, baseline)), default=float("-inf"))
            for seed, baseline in whole.items()
        }
        lead = difference(few, {seed: baseline.psnr for seed, baseline in whole.items()})
        parts.append((LEVELS[level], above(lead, what="lead", unit=" dB")))
    return combine(parts, FAILS, HOLDS)


def judge_more_passes_help_at_more_noise(view: View) -> Judgement:
    """Judge what EBT's second and third pass add."""
    ways = _whole(view, EBT, "out")
    found = [{one.seed: one.psnr for one in ways if one.passes == count} for count in range(1, PAPER_PASSES["out"] + 1)]
    parts = [
        (f"pass {count}", above(difference(later, earlier), what="adds", unit=" dB"))
        for count, (earlier, later) in enumerate(itertools.pairwise(found), 2)
    ]
    return combine(parts, FAILS, HOLDS)


def _whole(view: View, place: Place, level: str) -> list[Passed]:
    """Return the ways of a level that take whole passes: EBT's steps of training, DiT's every time."""
    found = [one for one in passed(view, place) if one.level == level]
    longest = max((one.steps for one in found), default=0)
    return [one for one in found if one.steps == longest]


def _within(one: Passed, baseline: Passed) -> bool:
    return one.seed == baseline.seed and one.evaluations <= SHARE * baseline.evaluations


def _draw_panel(axes: "Axes", rows: Sequence[Row]) -> None:
    for series, (model, style, label) in STYLES.items():
        own = [(row["evaluations"], row["psnr"]) for row in rows if row["series"] == series]
        figures.seeds_and_mean(axes, own, palette.model("ebt", model), label, style, hollow=series == "dit_short")


def _row(level: str, series: str, evaluations: int, seed: int, psnr: float) -> Row:
    return {"level": level, "series": series, "evaluations": evaluations, "seed": seed, "psnr": round(psnr, 6)}
