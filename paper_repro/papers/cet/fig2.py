"""CET, figure 2: what both methods make of 16 masked images."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.strips import draw_strip, floor_strip, strip

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


class Figure2(figures.Figure):
    """Originals, masked images, and those completed by each method, of the first seed that every method has.

    The images themselves are drawn from the attachments, figure.csv holds their errors.
    """

    size = (10.0, 4.4)
    marks = "Rows: the same images; under each its mean squared error."
    floors_drawn = ("visible_mean", "mean_image", "harmonic_images", "gaussian_images")

    def rows(self) -> list[Row]:
        found = {key: self.view.attachments("completed.json", dict(key)) for key in self.view.points}
        common = sorted(set.intersection(*map(set, found.values()))) if found else []
        return [
            {**dict(key), "seed": common[0], "image": image, "error": error}
            for key, contents in found.items()
            for image, error in enumerate(json.loads(contents[common[0]]) if common else [], 1)
        ] + [
            {"method": floor, "seed": common[0], "image": image, "error": error}
            for floor in self.artifact.floors
            for image, error in enumerate(self._errors(floor, common[0]) if common else [], 1)
        ]

    def _errors(self, floor: str, seed: int) -> list[float]:
        found = self.view.floor_attachment(floor, "completed.json", seed)
        return [] if found is None else list(json.loads(found))

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        if not rows:
            return
        seed, methods = rows[0]["seed"], list(dict.fromkeys(row["method"] for row in rows))
        first, labels = {"method": methods[0]}, self.artifact.axes["method"].values
        count = len([row for row in rows if row["method"] == methods[0]])
        names = {"original": "images.png", "masked": "masked.png"}
        strips: list[tuple[str, Any, list[Row | None]]] = [
            (label, strip(self.view, name, first, seed), [None] * count) for label, name in names.items()
        ]
        for method in methods:
            own: list[Row | None] = [row for row in rows if row["method"] == method]
            if method in labels:
                pixels, label = strip(self.view, "completed.png", {"method": method}, seed), labels[method].label
            else:
                pixels = floor_strip(self.view, method, "completed.png", seed)
                label = f"Floor: {self.artifact.floors[method].label}"
            strips.append((label, pixels, own))
        for axes, (label, pixels, shown) in zip(canvas.subplots(len(strips), 1), strips, strict=True):
            if pixels is not None:
                draw_strip(axes, pixels, label, rows, shown, "error")
