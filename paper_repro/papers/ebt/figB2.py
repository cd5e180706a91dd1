"""EBT, figure B.2: energies of predicted frames where a clip goes on, stands still, or is cut."""

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.claims import Judgement
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.strips import draw_strip, strip
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.thinking import above

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

EBT = {"model": "ebt"}
KINDS = {"goes_on": "goes on", "still": "stands still", "cut": "is cut"}
QUANTITIES = {"energy": "energy of the predicted frame,\nless the seed's mean", "loss": "its loss (Smooth L1)"}


class FigureB2(figures.Figure):
    """Energy and loss by frame, the mean over windows, each seed a thin line; below, the first window of each kind.

    The energies of a seed have an offset of their own: their mean over all kinds and frames is taken away.  The
    pictures are drawn from the attachments of the first seed.
    """

    size = (8.0, 5.4)
    marks = "Thin lines: seeds; strong lines: means over seeds; pictures: one clip of each kind, of the first seed."
    legend_title = "a clip that"
    without_line = "Measured on all test windows, and no line here"

    def rows(self) -> list[Row]:
        rows = []
        for seed, content in sorted(self.view.attachments("frames.csv", EBT).items()):
            for row in csv.DictReader(io.StringIO(content.decode())):
                numbers = {name: round(float(row[name]), 8) for name in QUANTITIES}
                rows.append({"kind": row["kind"], "seed": seed, "frame": int(row["frame"]), **numbers})
        return rows

    def _drawn(self, rows: Sequence[Row]) -> list[Row]:
        seeds = {row["seed"] for row in rows}
        offsets = {seed: intervals.mean([row["energy"] for row in rows if row["seed"] == seed]) for seed in seeds}
        return [{**row, "energy": row["energy"] - offsets[row["seed"]]} for row in rows]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        if not rows:
            return
        drawn = self._drawn(rows)
        upper, lower = canvas.subfigures(2, 1, squeeze=False, height_ratios=[3, 2])[:, 0]
        for axes, (quantity, label) in zip(upper.subplots(1, 2), QUANTITIES.items(), strict=True):
            for (kind, name), color in zip(KINDS.items(), palette.SERIES, strict=False):
                own = [row for row in drawn if row["kind"] == kind]
                frames = sorted({row["frame"] for row in own})
                for seed in sorted({row["seed"] for row in own}):
                    values = [row[quantity] for row in own if row["seed"] == seed]
                    axes.plot(frames, values, color=color, alpha=0.3, linewidth=0.8)
                means = [intervals.mean([row[quantity] for row in own if row["frame"] == frame]) for frame in frames]
                axes.plot(frames, means, color=color, label=name)
            axes.set(xlabel="frame", ylabel=label)
        seed = rows[0]["seed"]
        for axes, (kind, name) in zip(lower.subplots(len(KINDS), 1), KINDS.items(), strict=True):
            pixels = strip(self.view, f"{kind}.png", EBT, seed)
            if pixels is not None:
                of_frame = {row["frame"]: row for row in rows if (row["kind"], row["seed"]) == (kind, seed)}
                count = pixels.shape[1] // pixels.shape[0]
                draw_strip(axes, pixels, name, rows, [of_frame.get(frame) for frame in range(1, count + 1)])


def judge_frame_energy_is_uncertainty(view: View) -> Judgement:
    """Judge the rank correlation of energy and loss."""
    return above(view.samples("energy_rank", EBT), what="rank correlation")


def judge_still_clips_have_lower_energy(view: View) -> Judgement:
    """Judge how much lower the energy of a clip that stands still is."""
    return above(view.samples("still_fall", EBT), what="lower by", digits=4)


def judge_a_cut_raises_the_energy(view: View) -> Judgement:
    """Judge how much higher the energy is after a cut."""
    return above(view.samples("cut_rise", EBT), what="higher by", digits=4)
