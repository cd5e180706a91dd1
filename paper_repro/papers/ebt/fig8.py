"""EBT, figure 8: noised images and what is found in them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.strips import draw_strip, strip
from paper_repro.papers.ebt.denoising import EBT

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

LEVEL = "out"
FLOOR_NAMES = {"noised": "noised", "wiener": "Wiener filter", "total_variation": "total variation"}


class Figure8(figures.Figure):
    """The original, what is noised, and what the floors and the models find, of the first seed that all have.

    The images themselves are drawn from the attachments, figure.csv holds the PSNR of all test images.
    """

    size = (9.0, 5.6)

    def rows(self) -> list[Row]:
        names = [*FLOOR_NAMES, "dit", "ebt"]
        found = {name: self.view.samples(f"{LEVEL}_psnr", {"model": name}) for name in names}
        common = sorted(set.intersection(*map(set, found.values())))
        return [
            {"model": name, "seed": common[0], "psnr": round(found[name][common[0]], 4)} for name in names if common
        ]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        if not rows:
            return
        seed, labels = rows[0]["seed"], self.artifact.axes["model"].values
        strips: list[tuple[str, Any]] = [("original", strip(self.view, "original.png", EBT, seed))]
        for row in rows:
            pixels = strip(self.view, f"{LEVEL}_found.png", {"model": row["model"]}, seed)
            name = FLOOR_NAMES.get(row["model"], labels[row["model"]].label)
            strips.append((f"{name}\n{row['psnr']:.2f} dB", pixels))
        for axes, (label, pixels) in zip(canvas.subplots(len(strips), 1), strips, strict=True):
            if pixels is not None:
                draw_strip(axes, pixels, label, count=pixels.shape[1] // pixels.shape[0])
