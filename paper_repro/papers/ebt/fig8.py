"""EBT, figure 8: noised images and what is found in them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.strips import draw_strip, floor_strip, strip
from paper_repro.papers.ebt.denoising import EBT

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

LEVEL = "out"


class Figure8(figures.Figure):
    """The original, what is noised, and what the floors and the models find, of the first seed that all have.

    The images themselves are drawn from the attachments, figure.csv holds the PSNR of all test images.
    """

    size = (9.0, 5.6)
    marks = "Rows: the same images; beside each the PSNR of all test images."
    floors_drawn = ("noised", "wiener", "total_variation")

    def rows(self) -> list[Row]:
        metric = f"{LEVEL}_psnr"
        found = {floor.plan.name: floor.samples(metric) for floor in self.view.floors}
        found |= {name: self.view.samples(metric, {"model": name}) for name in ("dit", "ebt")}
        common = sorted(set.intersection(*map(set, found.values())))
        return [
            {"model": name, "seed": common[0], "psnr": round(found[name][common[0]], 4)} for name in found if common
        ]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        if not rows:
            return
        seed, models = rows[0]["seed"], self.artifact.axes["model"].values
        strips: list[tuple[str, Any, Row | None]] = [("original", strip(self.view, "original.png", EBT, seed), None)]
        for row in rows:
            name, file = row["model"], f"{LEVEL}_found.png"
            if name in models:
                pixels, label = strip(self.view, file, {"model": name}, seed), models[name].label
            else:
                pixels, label = floor_strip(self.view, name, file, seed), self.artifact.floors[name].label
            strips.append((f"{label}\n{row['psnr']:.2f} dB", pixels, row))
        for axes, (label, pixels, shown) in zip(canvas.subplots(len(strips), 1), strips, strict=True):
            if pixels is not None:
                draw_strip(axes, pixels, label, rows, [shown] * (pixels.shape[1] // pixels.shape[0]))
